"""Files, tables and lists to samples, and samples to shards: the parts of ``create``, which ``ops/create.py`` joins,
and the table of a join.

    walk        folders and files -> files; globs, and the command's own outputs
    payloads    lists of members -> files; values of lists and tables -> places
    delimited   text of CSV, TSV and JSON Lines -> cells
    rows        these, and Parquet, Arrow and lines -> rows
    layouts     the options and columns that all kinds of rows share; datasets of Hugging Face's library -> rows
    coco        COCO annotations -> rows
    table       rows -> files
    files       the result of all of these: files as columns; the rules that make a key and a field of a path
    grouping    files -> samples, in order; repeated and new keys
    packing     samples -> one shard: the task
    join_table  a table -> a shard in scratch space, for a join

This package does not know how options are given or reports are shown.
"""
