"""From metadata to a plan: the bytes of inputs that make each output shard. Only :mod:`wdscli.plan.values` reads
payloads, and only scratch files and plan files are written.

The road is :func:`wdscli.plan.plan.make_plan`, one step a module:

    survey -> table -> duplicates -> order -> cut -> shards (wdscli.copy, wdscli.run)

One noun, one meaning, everywhere:

============== ========================================================================================================
Input          One input shard: its address, the path of its copy, and its stamp (``inputs``).
Stamp          Size and version of an input at planning time. They show a later change (``inputs``).
Set            The input shards that one argument of the command names. A joined table is a set too.
Request        The inputs, the output, and the options that all reordering commands share (``request``).
Survey         What one input shard holds. A task makes it from headers or from an index (``survey``).
Row            One selected sample: its bytes, its length in the output, the hash of its key (``table.row_type``).
PlanTable      All rows in input order, in a mapped scratch file (``table``).
Value          A byte string that an order needs of a sample. An Extract takes it during the survey (``values``).
Code           A sort value as bytes that compare as the value does (``sort``).
Surveyed       The table and the values, the input of orders and of duplicates (``orders``).
Pairs          Samples that repeat an earlier one, each with the first that it repeats (``duplicates``).
Rereader       Reads a few samples again, because a row has no name (``duplicates``).
Order          Two things: the columns it sorts by, and the parts it makes (``orders``, ``sort``, ``split``, ``join``).
Arranged       The result of an order: rows in output order, and parts (``orders``).
Ordered        Rows in output order: the table and an array of row numbers (``table``).
Part           A named share of the output, which becomes a set of its own: ``train`` (``cut``). In a join, the members
               that one set gives to a sample.
Cut            Where one output shard ends and the next begins (``cut``).
PlannedShard   One output shard: its address and its range of the output order (``cut``).
Contents       What the shards of an output hold: inputs, rows in output order, joins, outputs and shards (``plan``).
Provenance     How a set is made, for its manifest: operation, options, seed, inputs, classes.
ReorderPlan    Contents, provenance, counts and the request, ready to run or to store (``plan``, ``planfile``).
Maker          How the shards of a plan are made: copied, transformed or packed (``copy/maker``).
PlanMark       The fingerprint of a plan. A run resumes only shards of the same plan (``request``).
Slot           One member of a joined sample: its field, its part and its number in the part.
Shape          The fields of a sample, in its own order.
============== ========================================================================================================
"""
