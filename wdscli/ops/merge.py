"""``merge``: write the samples of several sets as one set. The sets follow each other or take turns.

:func:`merge_order` makes the order of the plan (:mod:`wdscli.plan.plan`). The default is input order.
:func:`~wdscli.ordering.interleaved` makes the sets take turns. Each input, which may be many shards, is one set. This
module does not know where samples are written.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from wdscli.create.join_table import KeysByValue
from wdscli.errors import UsageError
from wdscli.look.picking import SampleReader
from wdscli.ordering import Stop, interleaved, parse_weights
from wdscli.plan.inputs import Stamp, TableShard
from wdscli.plan.join import NO_PARTNER, JoinedTable
from wdscli.plan.orders import Arrangement, InputOrder, Look, Order, SurveyedSamples
from wdscli.plan.plan import DUPLICATE_KEY
from wdscli.plan.request import Request
from wdscli.progress import Progress
from wdscli.samples.keys import KeySet
from wdscli.selection import Selection
from wdscli.selection.listed import column_and_value
from wdscli.shards.writing import ShardFile, ShardSettings

_OF_KEY = re.compile(r"\s*key\s*=(?!=)")
SET_ENDED = "set-ended"
"""The reason for leaving out samples with ``stop="first"``."""


@dataclass(frozen=True)
class SetByValue(JoinedTable):
    """The second set of a join by a value. It is joined like a table: a shard in scratch space has its samples, with
    the keys of the samples of the first set that have the same value. Several of these may have the same sample."""

    on_conflict = "error"
    noun = "set"
    hint = "give both sets keys by the value first, as views: wds split SET -o NAME.json --rekey '{json.id}'"

    def write_shard(self, address: str, request: Request, progress: Progress, look: Look) -> TableShard:
        column, value = column_and_value(self.on)
        other = column_and_value(column)[1] if column != "key" or _OF_KEY.match(self.on) else value
        is_lenient = request.on_error == "skip"
        keys, seen, dropped = KeysByValue(value, is_lenient), KeySet(), Counter[str]()
        look(lambda set_number, selection: keys)
        request = request._replace(inputs=[str(self.files)], selection=Selection(), dedup=())
        with ShardFile(address, ShardSettings(with_index=False)) as shard:
            for page in SampleReader(request, progress=progress).pages():
                for row in page.rows:
                    sample = page.sample(row)
                    text = other.of(sample, is_lenient)
                    sample_keys = () if text is None else keys.of(text)
                    if sample_keys and seen.add_new(sample_keys):
                        for key in sample_keys:
                            shard.write_pieces(key, page.members(row))
                        continue
                    if sample_keys and request.on_duplicate != "skip":
                        message = f"an earlier sample of the set has the same {other.text}"
                        hint = "--on-duplicate skip leaves out later samples"
                        raise sample.error(message, DUPLICATE_KEY, hint=hint)
                    dropped[DUPLICATE_KEY if sample_keys else NO_PARTNER] += 1
            info = shard.commit()
        return TableShard(dropped, info.size_bytes, Stamp(info.size_bytes, info.checksum or ""), [])


@dataclass(frozen=True)
class MergeOrder(Order):
    """An order in which sets take turns. ``shares`` are the shares of the sets in the output."""

    shares: tuple[int, ...]
    stop: Stop = "all"
    operation = "merge"

    def options(self) -> dict[str, Any]:
        is_equal = set(self.shares) == {1}
        options: dict[str, Any] = {"interleave": True} if is_equal else {"weights": list(self.shares)}
        return options if self.stop == "all" else {**options, "stop": self.stop}

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        # The rows are in input order, so the samples of a set are adjacent.
        order, left = interleaved(surveyed.counts_of_sets(), self.shares, self.stop)
        return Arrangement(order, dropped={SET_ENDED: left} if left else {})


def merge_order(
    request: Request, *, weights: str | None = None, stop: Stop | None = None
) -> MergeOrder | InputOrder:
    """Return the order of a merge from options as typed. By default, one set follows the other. With ``weights``, the
    sets take turns; the weights (such as ``"0.7,0.3"``, or ``"equal"``) are their shares of the output. ``stop`` says
    when the output ends (:func:`~wdscli.ordering.interleaved`); by default, it ends when all sets have ended. Raises
    UsageError."""
    if weights is None:
        if stop is not None:
            raise UsageError(f"--stop {stop} works only with --weights", hint="add --weights")
        return InputOrder("merge")
    option, sets = f"--weights {weights}", len(request.inputs)
    shares = (1,) * sets if weights == "equal" else parse_weights(weights)
    hint = "each argument is one set, of any number of shards: wds merge A.tar 'B-*.tar' ..."
    if sets < 2:
        raise UsageError(
            f"{option} takes samples from several sets in turn, but there is only one set", hint=hint
        )
    if sets != len(shares):
        weighed = "1 weight" if len(shares) == 1 else f"{len(shares)} weights"
        raise UsageError(f"{option} has {weighed}, but there are {sets} sets", hint=hint)
    return MergeOrder(shares, stop or "all")
