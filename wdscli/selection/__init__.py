"""Which samples, and which of their fields: ``--fields --drop --rename --keys --keys-from --where --slice
--sample --limit``.

What it is: one immutable, picklable :class:`Selection`, made once from the raw options, and a small
:class:`SelectionState` that counts while samples go by. How: a selection works on the columns of a
:class:`~wdscli.samples.SampleBatch` and answers with rows, so that a command which selects nothing in
particular pays nothing; payloads are asked for only where ``--where`` names what is in them. What an option
needs (the expression library, globs) is imported when that option is given.

It must not know what the samples are selected for, nor print: what a user should hear is in
:meth:`Selection.remarks`.
"""

from wdscli.selection.choice import Selection, SelectionState
from wdscli.selection.reading import iter_selected
from wdscli.selection.sample import PayloadOf

__all__ = ["PayloadOf", "Selection", "SelectionState", "iter_selected"]
