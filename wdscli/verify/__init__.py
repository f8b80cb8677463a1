"""This package finds what is wrong with shards, and which samples can be saved.

    findings    all kinds of findings in one table; the ledger, which collects a bounded number of them
    set         all shards of a set: one task each, then what only the whole set shows
    shard       one shard, from its first byte to its last: the pass over headers, and decoded payloads
    keys        repeated keys in a shard and over all shards, and keys that must be absent
    profiles    requirements on names, fields and values: of any reader, and of four of them
    beside      manifests, indexes and checksums, compared with the shards
    repair      the plan of what can be saved, and new shards made of it

All findings are collected first and reported afterwards. This package does not know how findings are printed.
"""
