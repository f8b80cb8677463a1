"""Members to samples: the key rule, the grouping of adjacent members, samples with their payloads.

It must not know where bytes come from, nor what a shard set is.
"""

from wdscli.samples.batch import RAGGED, Ignored, SampleBatch, new_batch
from wdscli.samples.grouping import Grouper, duplicate_field, group_columns, iter_batches
from wdscli.samples.keys import (
    MAX_NAME_BYTES,
    check_name,
    is_dunder,
    may_be_unsafe,
    split_name,
    why_ignored,
    why_unsafe,
)
from wdscli.samples.reading import iter_samples

__all__ = [
    "Grouper",
    "Ignored",
    "MAX_NAME_BYTES",
    "RAGGED",
    "SampleBatch",
    "check_name",
    "duplicate_field",
    "group_columns",
    "is_dunder",
    "iter_batches",
    "iter_samples",
    "may_be_unsafe",
    "new_batch",
    "split_name",
    "why_ignored",
    "why_unsafe",
]
