"""Samples that come more than once: under a new key each time, so that no key comes twice.

What it is: :func:`in_rounds`, which turns an order that has some samples more than once into one that has each row
once. How: an input gone through again is an input more: the same address with the number of the round, and a sample's
key there ends in ``-`` and that number. So whoever carries a plan out or stores it need not know of rounds. It must not
know why samples are repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

from wdscli.ops.rekey import Rekey, in_round, shard_stem
from wdscli.ops.repeats import check_keys_in_rounds, read_again
from wdscli.ops.rows import Ordered, Samples
from wdscli.ops.scratch import Input
from wdscli.ops.survey import RENAMED, SurveyTask, hash_key, out_length, out_sizes
from wdscli.samples import SampleBatch

if TYPE_CHECKING:
    from wdscli.ops.rows import I64, U8, U32


class Naming(NamedTuple):
    """What new keys are made from: the inputs, how they are read, and how marked samples get their key anyway."""

    inputs: Sequence[Input]
    template: SurveyTask
    rekey: Rekey | None


def in_rounds(ordered: Ordered, rounds: U32, naming: Naming) -> tuple[Ordered, Sequence[Input]]:
    """The same order with a row of its own for each time a sample comes, and the inputs, one for each round.

    ``rounds`` says of each sample of ``ordered`` the how manieth time it comes, from 0. Raises DataError when a new key
    is taken.
    """
    import numpy

    assert ordered.order is not None
    order, samples = ordered.order.copy(), ordered.samples
    later: I64 = numpy.flatnonzero(rounds)
    # By sample, so that each is read once, and then by round and place, as input order is.
    later = later[numpy.lexsort((rounds[later], order[later]))]
    added = Samples(samples.rows[order[later]])
    _put(naming, samples, order[later], rounds[later], added)
    added.shards[:] += rounds[later] * numpy.uint32(len(naming.inputs))
    sequence = numpy.argsort(added.shards, kind="stable")
    order[later[sequence]] = numpy.arange(samples.total, samples.total + len(later))
    whole = Samples(numpy.concatenate([samples.rows, added.rows[sequence]]))
    all_inputs = InputsOfRounds(naming.inputs, int(rounds.max(initial=0)) + 1)
    check_keys_in_rounds(whole, all_inputs, naming.template, naming.rekey)
    return Ordered(whole, order), all_inputs


class InputsOfRounds(Sequence[Input]):
    """The inputs, one for each round; made when they are asked for, because a small set may come very often.

    >>> [(one.address, one.round) for one in InputsOfRounds([Input("a.tar"), Input("b.tar")], 2)]
    [('a.tar', 0), ('b.tar', 0), ('a.tar', 1), ('b.tar', 1)]
    """

    def __init__(self, inputs: Sequence[Input], rounds: int) -> None:
        self._inputs = inputs
        self._numbers = range(len(inputs) * rounds)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, which: int) -> Input: ...
    @overload
    def __getitem__(self, which: slice) -> list[Input]: ...
    def __getitem__(self, which: int | slice) -> Input | list[Input]:
        if isinstance(which, slice):
            return [self[number] for number in self._numbers[which]]
        number, place = divmod(self._numbers[which], len(self._inputs))
        return self._inputs[place]._replace(round=number)


def _put(naming: Naming, samples: Samples, rows: I64, rounds: U32, added: Samples) -> None:
    """Key, length and mark of ``added``, the samples at rising ``rows`` in these rounds."""
    import numpy

    distinct, counts = numpy.unique(rows, return_counts=True)
    at = 0
    sources = named_samples(naming, samples, distinct.tolist(), samples.marks[distinct])
    for source, end in zip(sources, numpy.cumsum(counts).tolist(), strict=True):
        while at < end:
            source.put(added, at, int(rounds[at]))
            at += 1


def named_samples(naming: Naming, samples: Samples, rows: Sequence[int], marks: U8) -> Iterator[NamedSample]:
    """The samples at rising ``rows``, whose marks are ``marks``."""
    again = read_again(samples, naming.inputs, naming.template, rows)
    for (_, address, batch, at), mark in zip(again, marks.tolist(), strict=True):
        yield NamedSample(naming, address, batch, at, mark)


class NamedSample:
    """A sample by name, and what its name in a later round changes."""

    def __init__(self, naming: Naming, address: str, batch: SampleBatch, at: int, mark: int) -> None:
        self._key = batch.keys[at]
        if naming.rekey is not None and mark & RENAMED:
            self._key = naming.rekey.key(self._key, shard_stem(address), batch.index + at)
        self._naming = naming
        self._where = batch, at, address
        self._lengths: dict[int, int] = {}

    def put(self, added: Samples, at: int, number: int) -> None:
        """Set key, length and mark of a row for round ``number``."""
        new = in_round(self._key, number)
        added.keys[at] = hash_key(new)
        added.out_lengths[at] = self._length(new)
        added.marks[at] |= RENAMED

    def _length(self, key: bytes) -> int:
        """Bytes in the output; keys of one length make samples of one length."""
        length = self._lengths.get(len(key))
        if length is None:
            batch, at, address = self._where
            template = self._naming.template
            sizes = out_sizes(batch, at, template.selection, address, key)
            length = self._lengths[len(key)] = out_length(sizes, template.form)
        return length
