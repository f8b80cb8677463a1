"""This package finds what is wrong with shards, and which samples can be saved.

    findings    the table of all kinds of findings; the ledger, which collects a limited number of findings
    set         all shards of a set: one task per shard, then the checks of the whole set
    shard       one shard, from its first byte to its last: the pass over headers
    decoding    payloads, decoded, and what was not decoded
    keys        repeated keys in a shard and over all shards, and keys that must be absent
    profiles    requirements on names, fields and values: of any reader, and of four of them
    beside      manifests, indexes and checksums, compared with the shards
    repair      the plan of the samples that can be saved, and the new shards

All findings are collected first and reported afterwards. This package does not know how findings are printed.
"""
