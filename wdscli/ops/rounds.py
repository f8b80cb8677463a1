"""Samples that come more than once: under a new key each time, so that no key comes twice.

What it is: :func:`in_rounds`, which turns an order that has some samples more than once into one that has each row
once. How: an input gone through again is an input more: the same address with the number of the round, and a sample's
key there ends in ``-`` and that number. So whoever carries a plan out or stores it need not know of rounds. It must not
know why samples are repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wdscli.ops.rekey import Rekey, in_round, shard_stem
from wdscli.ops.repeats import check_keys_in_rounds, read_again
from wdscli.ops.rows import Ordered, Samples
from wdscli.ops.scratch import Input
from wdscli.ops.survey import RENAMED, SurveyTask, hash_key, out_length, out_sizes

if TYPE_CHECKING:
    from wdscli.ops.rows import I64, U32


def in_rounds(
    ordered: Ordered, rounds: U32, inputs: Sequence[Input], template: SurveyTask, rekey: Rekey | None
) -> tuple[Ordered, tuple[Input, ...]]:
    """The same order with a row of its own for each time a sample comes, and the inputs, one for each round.

    ``rounds`` says of each sample of ``ordered`` the how manieth time it comes, from 0; ``rekey`` how samples that are
    marked for it get new keys. Raises DataError when a new key is taken.
    """
    import numpy

    assert ordered.order is not None
    order, samples = ordered.order.copy(), ordered.samples
    later: I64 = numpy.flatnonzero(rounds)
    # By sample, so that each is read once, and then by round and place, as input order is.
    later = later[numpy.lexsort((rounds[later], order[later]))]
    added = Samples(samples.rows[order[later]])
    names = _Names(inputs, template, rekey)
    names.put(samples, order[later], rounds[later], added)
    added.shards[:] += rounds[later] * numpy.uint32(len(inputs))
    sequence = numpy.argsort(added.shards, kind="stable")
    order[later[sequence]] = numpy.arange(samples.total, samples.total + len(later))
    whole = Samples(numpy.concatenate([samples.rows, added.rows[sequence]]))
    all_inputs = tuple(
        one._replace(round=number) for number in range(int(rounds.max(initial=0)) + 1) for one in inputs
    )
    check_keys_in_rounds(whole, all_inputs, template, rekey)
    return Ordered(whole, order), all_inputs


class _Names:
    """New keys, and what they change."""

    def __init__(self, inputs: Sequence[Input], template: SurveyTask, rekey: Rekey | None) -> None:
        self._inputs = inputs
        self._template = template
        self._rekey = rekey

    def put(self, samples: Samples, rows: I64, rounds: U32, added: Samples) -> None:
        """Key, length and mark of ``added``, the samples at rising ``rows`` in these rounds."""
        import numpy

        distinct, counts = numpy.unique(rows, return_counts=True)
        ends = numpy.cumsum(counts).tolist()
        at = 0
        again = read_again(samples, self._inputs, self._template, distinct.tolist())
        for (row, address, batch, place), end in zip(again, ends, strict=True):
            key = batch.keys[place]
            if self._rekey is not None and samples.marks[row] & RENAMED:
                key = self._rekey.key(key, shard_stem(address), batch.index + place)
            lengths: dict[int, int] = {}
            while at < end:
                new = in_round(key, int(rounds[at]))
                if len(new) not in lengths:
                    sizes = out_sizes(batch, place, self._template.selection, address, new)
                    lengths[len(new)] = out_length(sizes, self._template.form)
                added.keys[at] = hash_key(new)
                added.out_lengths[at] = lengths[len(new)]
                at += 1
        added.marks[:] |= numpy.uint8(RENAMED)
