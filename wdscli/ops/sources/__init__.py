"""Where samples come from when they are not yet in shards: folders and files, lists, tables."""
