"""numpy, loaded when the first array is made, and the types of arrays.

What it is: ``numpy``, used instead of the package in modules that need it only sometimes, and a name for each kind of
array. How: loading numpy takes longer than a small command runs, so it is loaded at the first use of an attribute. It
must not know what is in an array.
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
