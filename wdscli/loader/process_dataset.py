"""This module has the base of all datasets that a process iterates, whatever engine yields their items.

:class:`ProcessDataset` has the number of the epoch. It does not know what an item is, nor how items are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

from wdscli.loader.checks import want_whole
from wdscli.loader.place.exactness import PLAIN
from wdscli.loader.place.iteration import IterationState
from wdscli.loader.place.ranks import TorchIterable, in_worker
from wdscli.loader.place.state import Place
from wdscli.loader.stages.flow import Item
from wdscli.loader.stages.fluent import Fluent

Made = TypeVar("Made", bound="ProcessDataset")


class ProcessDataset(TorchIterable[Item], Fluent[Item]):
    """A dataset that each process iterates separately, epoch after epoch."""

    _state: IterationState
    _epochs: ClassVar[Any]
    """The ``__iter__`` of the engine. A user's subclass may replace ``__iter__``, but not this attribute."""

    def _with(self: Made, **changes: Any) -> Made:
        return super()._with(**{"_state": self._state.copy(), **changes})

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._state.start.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin epoch ``epoch`` with the next iteration, or resume at the place of a loaded state of this epoch.
        DataLoader workers, also persistent workers, begin the same epoch."""
        epoch = want_whole("epoch", epoch, 0)
        start = self._state.start
        self._state.move(start if start.epoch == epoch else Place(epoch))

    @property
    def is_exact(self) -> bool:
        """Whether batches are the same for any numbers of ranks and workers, and a state fits any such numbers."""
        return self.why_not_exact is None

    @property
    def why_not_exact(self) -> str | None:
        """The reason why the dataset is not exact, or None."""
        return PLAIN

    def iterator1(self) -> Iterator[Any]:
        """Yield one epoch. A subclass with its own ``__iter__`` or ``iterator`` calls this method, as in webdataset.
        The next call begins the next epoch, even if the caller stops before the end of this epoch."""
        epoch = self.epoch
        try:
            yield from self._with(_state=self._state)._with_span(None)._epochs()
        finally:
            if self.epoch == epoch and not in_worker():
                self.set_epoch(epoch + 1)
