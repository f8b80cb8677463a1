"""Files, tables and lists to samples, and samples to shards: the parts of ``create``, which ``ops/create.py`` puts
together, and the table of a join.

    walk        folders and files -> files; globs, and what is about to be written
    recipe      lists of members -> files
    rows        files of CSV, TSV, JSON Lines, Parquet, Arrow and lines -> rows
    layouts     what all that is read by rows has in common
    coco, hf    annotations as COCO has them, and datasets of Hugging Face's library -> rows
    table       rows -> files
    payloads    values that are in no file of their own -> places
    keys        the rules by which a path becomes a key and a field
    files       what all of these give: files as columns, and where their payloads are
    grouping    files -> samples, in order
    packing     samples -> one shard: the task
    join_table  a table -> a shard in scratch space, for a join

It must not know how options are given or reports are shown.
"""
