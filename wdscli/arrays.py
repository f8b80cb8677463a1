"""numpy, loaded by who makes the first array, and what arrays are called.

What it is: ``numpy``, which stands for the package in all modules that only sometimes need it, and a name for each kind
of array. How: loading numpy takes longer than a small command runs, so it is loaded when something of it is first
named; from then on that is an attribute like any other. It must not know what is in an array.
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
