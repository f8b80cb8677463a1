"""One module for each command, imported when the command is called. Its main function has the command's name."""

PANELS = {
    "Make and change": {
        "create": "Make shards from folders, files, lists or tables.",
        "split": "Rewrite a set with other shard sizes, or divide it into parts.",
        "merge": "Write several sets as one: one after the other, interleaved, or joined by key.",
        "shuffle": "Shuffle all samples; the order depends only on the seed.",
        "sort": "Write all samples sorted by key, by a field, by a value in JSON, or in the order of a list.",
        "map": "Transform samples with a command or a Python function, or resize pictures.",
        "run": "Run a plan or some of its tasks, or a dSort job of AIStore.",
        "cat": "Write the selected samples as one tar, in input order.",
    },
    "Look and check": {
        "ls": "List samples, members or shards, count values, or show samples.",
        "verify": "Check shards and report everything that is wrong with them.",
        "repair": "Save the intact samples of damaged shards.",
        "report": "Write a page about a set: samples, sizes, classes, texts, mixing, findings.",
        "diff": "Compare two sets as data: keys, fields, payloads, order, shards.",
        "index": "Write indexes and manifests for shards made elsewhere.",
        "bench": "Measure how fast the loader reads a set, and what limits it.",
    },
}
"""The commands in the panels of ``wds --help``, each with the first line of its docstring."""
COMMANDS = {name: summary for panel in PANELS.values() for name, summary in panel.items()}
