"""From metadata to a plan: which bytes of which inputs make which output shard. No payload is read but through
:mod:`wdscli.plan.values`, and nothing is written but scratch files and a plan's file.

The road is :func:`wdscli.plan.plan.make_plan`, one step a module:

    survey -> table -> duplicates -> order -> cut -> tasks (wdscli.run, wdscli.copy)

One noun, one meaning, everywhere:

============== ========================================================================================================
Input          One input shard: its address, the copy that may stand in for it, and its stamp (``inputs``).
Stamp          Size and version of an input when it was planned with, by which a change is noticed (``inputs``).
Set            What one argument of the command names: any number of input shards. A table that is joined is one too.
Request        What a command asks: inputs, output, and the options that all such commands share (``request``).
Survey         What one input shard holds; made by a task, from headers or an index (``survey``).
Row            One selected sample: where its bytes lie, how long it will be, the hash of its key (``table.row_type``).
PlanTable      All rows in input order, in a scratch file that is mapped (``table``).
Value          A byte string that an order wants to know of a sample; an Extract takes it in the survey (``values``).
Code           A value of a sort as bytes that compare as it does (``sort``).
Surveyed       The table and the values, as orders and duplicates are given them (``orders``).
Pairs          Samples that repeat an earlier one, and the first that each repeats (``duplicates``).
Rereader       Reads a few samples again, because a row has no name (``duplicates``).
Order          Two things: the columns it sorts by, and the parts it makes (``orders``, ``sort``, ``split``, ``join``).
Arranged       What an order makes: rows in output order, and parts (``orders``).
Ordered        Rows in output order: the table and an array of row numbers (``table``).
Part           A named share of the output, which becomes a set of its own: ``train`` (``cut``). In a join, what one set
               gives to a sample.
Cut            Where one output shard ends and the next begins (``cut``).
PlannedShard   One output shard: its address and its range of the output order (``cut``).
ReorderPlan    All of that, ready to be run or stored (``plan``, ``planfile``).
PlanMark       The fingerprint of a plan, by which a run is gone on with (``request``).
Slot           One member of a joined sample: its field, and the part and member that it is from (``join``).
Shape          The fields of a sample, in its own order (``join``).
============== ========================================================================================================
"""
