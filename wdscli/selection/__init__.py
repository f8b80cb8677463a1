"""This package selects samples and fields: ``--fields --drop --rename --keys --keys-from --where --slice --sample
--limit``.

A :class:`Selection` is immutable and picklable, and is made once from the raw options. A :class:`SelectionState` counts
while samples are read. A selection takes the columns of a :class:`~wdscli.samples.SampleBatch` and returns rows, so
that it costs nothing if it selects everything. Payloads are read only if ``--where`` names their values. The packages
of an option are imported when it is used.

This module does not know what the samples are for, and prints nothing: warnings are in :meth:`Selection.remarks`.
"""

from wdscli.samples.grouping import PayloadOf
from wdscli.selection.choice import Selection, SelectionState
from wdscli.selection.reading import Walk

__all__ = ["PayloadOf", "Selection", "SelectionState", "Walk"]
