"""Make a plan from metadata. The plan says which bytes of the inputs make each output shard. Only
an extract (:mod:`wdscli.plan.table`) reads payloads. Only scratch files and plan files are written.

:func:`wdscli.plan.plan.make_plan` runs these steps, one module for each:

    survey -> table -> duplicates -> order -> cut -> shards (wdscli.copy, wdscli.run)

Each noun has one meaning in the whole program:

=============== ========================================================================================================
Input           One input shard: its address, the path of its copy, and its stamp (``inputs``).
Stamp           Size and version of an input at planning time, to detect a later change (``inputs``).
Set             All input shards that one argument of the command names. A joined table is a set too.
Request         The inputs, the output, and the options that all reordering commands share (``request``).
Survey          The rows and counts of one input shard, made from headers or from an index (``survey``).
Row             One selected sample: its bytes, its length in the output, the hash of its key (``table.row_type``).
PlanTable       All rows in input order, in a mapped scratch file (``table``).
Value           A byte string of a sample that an order needs. An Extract takes it during the survey (``table``).
Code            A sort value as bytes that sort in the same order as the values (``sort``).
SurveyedSamples The table and the values: the input for orders and for duplicates (``orders``).
Pairs           Samples that repeat an earlier sample, each with the first equal sample (``duplicates``).
Rereader        Reads a few samples again, because a row has no name (``duplicates``).
Order           The columns to sort by, and the parts to make (``orders``, ``sort``, ``split``, ``join``).
Arrangement     The result of an order: rows in output order, and parts (``orders``).
Ordered         Rows in output order: the table and an array of row numbers (``table``).
Part            A named share of the output, which becomes its own set: ``train`` (``cut``). In a join, the members
                that one set gives to a sample.
Cut             Where one output shard ends and the next begins (``cut``).
PlannedShard    One output shard: its address and its range of the output order (``cut``).
Contents        The contents of all shards of an output: inputs, rows in output order, joins and shards (``plan``).
Provenance      The record of how a set is made, for its manifest: operation, options, seed, inputs, classes.
ReorderPlan     Contents, provenance, counts and the request, ready to run or to store (``plan``, ``planfile``).
Maker           Makes the shards of a plan: by copying, transforming or packing (``copy/maker``).
PlanMark        The fingerprint of a plan. A run resumes only shards of the same plan (``request``).
Slot            One member of a joined sample: its field, its part and its number in the part.
Shape           The fields of a sample, in the sample's order.
=============== ========================================================================================================
"""
