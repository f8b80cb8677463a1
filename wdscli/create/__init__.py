"""Files, tables and lists to samples, and samples to shards: the parts of ``create``, which ``ops/create.py`` joins,
and the table of a join.

    walk        folders and files -> files; globs, and the command's own outputs
    recipe      lists of members -> files
    rows        files of CSV, TSV, JSON Lines, Parquet, Arrow and lines -> rows
    layouts     the options and columns that all kinds of rows share
    coco, hf    COCO annotations, and datasets of Hugging Face's library -> rows
    table       rows -> files
    payloads    values of lists and tables -> places
    keys        the rules that make a key and a field of a path
    files       the result of all of these: files as columns, and the places of their payloads
    grouping    files -> samples, in order
    packing     samples -> one shard: the task
    join_table  a table -> a shard in scratch space, for a join

It must not know how options are given or reports are shown.
"""
