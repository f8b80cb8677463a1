"""This package turns members into samples: the key rule, the grouping of adjacent members, samples with payloads.

This package does not know where bytes come from, and does not know shard sets.
"""

from wdscli.samples.grouping import RAGGED as RAGGED
from wdscli.samples.grouping import Grouper as Grouper
from wdscli.samples.grouping import SampleBatch as SampleBatch
from wdscli.samples.grouping import group_columns as group_columns
from wdscli.samples.grouping import iter_batches as iter_batches
from wdscli.samples.grouping import new_batch as new_batch
from wdscli.samples.keys import check_name as check_name
from wdscli.samples.keys import is_appledouble as is_appledouble
from wdscli.samples.keys import is_dunder as is_dunder
from wdscli.samples.keys import may_be_unsafe as may_be_unsafe
from wdscli.samples.keys import split_name as split_name
from wdscli.samples.keys import why_ignored as why_ignored
from wdscli.samples.keys import why_unsafe as why_unsafe
from wdscli.samples.reading import iter_samples as iter_samples
