"""The parts of ``wds map``, which transforms samples into new samples.

    transform   the transform of each sample, as options and plan files have it
    commands    a shell command per sample, in its own scratch folder; or one field through a filter
    functions   a user's Python function
    pictures    pictures of another size or format
    shards      slices of planned shards, read and transformed in any process; the writing of results, and checks

A *call* applies a transform to one sample, or to ``batch`` samples. A failed call raises
:class:`~wdscli.transform.transform.CallError`; ``shards`` decides whether its samples are kept. A call gets
samples as :class:`~wdscli.transform.transform.InputSample`, and returns new samples: keys, and fields in order. This
package does not know how shards are planned.
"""
