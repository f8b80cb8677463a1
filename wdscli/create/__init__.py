"""The parts of ``create``: files, tables and lists become samples, and samples become shards. ``ops/create.py``
combines these parts. The table of a join is also here.

    walk        folders and files -> files; also globs, and the command's own outputs
    payloads    lists of members -> files; values of lists and tables -> places
    delimited   text of CSV, TSV and JSON Lines -> cells
    rows        delimited text, Parquet, Arrow and lines -> rows
    layouts     the options and columns that all kinds of rows share; datasets of Hugging Face's library -> rows
    coco        COCO annotations -> rows
    table       rows -> files
    left_out    everything that is left out: counts, the report, and one error for all bad rows
    files       the result of these modules: files as columns; also the rules that split a path into key and field
    grouping    files -> samples, in order; repeated and new keys
    packing     samples -> one shard, by one task
    join_table  a table -> a shard in scratch space, for a join

This package does not know how options are given or reports are shown.
"""
