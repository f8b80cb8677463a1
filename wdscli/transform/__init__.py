"""Samples made of samples: what stands behind ``wds map``.

    transform   what is done to each sample, as typed and as a plan file holds it; resizing by codecs/resize
    commands    a shell command per sample, in a scratch folder of its own; or one field through a filter
    functions   a Python function of a user's
    slices      some samples of a planned shard: read, transformed, in whatever process

A *call* is one application of a transform: to one sample, or to ``batch`` of them. A call that fails is
:class:`~wdscli.transform.transform.CallError`; what becomes of its samples is decided in ``slices``. A call gets
:class:`~wdscli.transform.transform.Taken` samples and gives new ones, keys and fields in order. It must not know how
shards are planned or written.
"""
