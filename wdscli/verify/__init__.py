"""What is wrong with shards, and what of them can be saved.

    findings    what can be wrong, in one table; the ledger that gathers all of it within bounds
    set         all shards of a set: one task each, then what only the whole set shows
    shard       one shard, from its first byte to its last: the task
    headers     what headers tell: names, kinds, fields, sizes
    keys        keys that come twice, in a shard and over all shards
    profiles    what is demanded of names and fields, by any reader and by four of them
    decode      payloads that are not what their field says
    beside      manifests, indexes and checksums, compared with the shards
    salvage     which samples of a damaged shard can be saved: the plan
    repair      the plans of all shards, carried out

Everything is gathered first and reported then. It must not know how findings are shown.
"""
