"""Types of datasets' items, for type checkers: samples before and after ``decode``, and how stages change them.

What it is: :data:`RawSample` and :data:`Sample`, which are plain dictionaries at run time, the type variable of
datasets, and :func:`giving`. A stage keeps the type of items, or the class of a dataset declares another one, which a
method of a base class cannot. It must not be needed at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

Sample = dict[str, Any]
"""A sample after ``decode``: ``__key__``, ``__url__``, and fields of any kind. Batches of samples have this type, too.
"""

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Concatenate, Literal, ParamSpec, overload

    from typing_extensions import TypeVar as TypeVarWithDefault

    Item = TypeVarWithDefault("Item", covariant=True, default=Any)
    Arguments = ParamSpec("Arguments")
    Given = TypeVar("Given")

    class RawSample(dict[str, Any]):
        """A sample as it was read: a dict of ``__key__`` and ``__url__``, which are text, and payloads, bytes. A new
        dataset gives ``RawSample | Any``, so that ``data = data.decode()`` may take its place."""

        @overload
        def __getitem__(self, name: Literal["__key__", "__url__"]) -> str: ...  # type: ignore[overload-overlap]
        @overload
        def __getitem__(self, name: str) -> bytes: ...
        def __getitem__(self, name: str) -> Any: ...

    class Unknown:
        """Matches no item: only a dataset of an unknown type matches a method for this."""

    def giving(
        method: Callable[Concatenate[Any, Arguments], Any], given: Given
    ) -> Callable[Concatenate[Any, Arguments], Given]:
        """``method`` with its arguments, giving what is like ``given``."""
        raise NotImplementedError
else:
    Item = TypeVar("Item")
    RawSample = dict
