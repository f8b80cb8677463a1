"""numpy, loaded when the first array is made, and names for the types of arrays.

Modules that need numpy only sometimes use ``numpy`` from here instead of the package. Loading numpy takes longer than a
small command runs, so it is loaded at the first use of an attribute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as numpy
    from numpy.typing import NDArray
else:

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            found = self.__dict__[name] = getattr(numpy, name)
            return found

    numpy = _Numpy()

U8: TypeAlias = "NDArray[numpy.uint8]"
U16: TypeAlias = "NDArray[numpy.uint16]"
U32: TypeAlias = "NDArray[numpy.uint32]"
U64: TypeAlias = "NDArray[numpy.uint64]"
I64: TypeAlias = "NDArray[numpy.int64]"
Mask: TypeAlias = "NDArray[numpy.bool_]"
Rows: TypeAlias = "NDArray[numpy.void]"
