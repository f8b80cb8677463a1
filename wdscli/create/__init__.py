"""Sources of new shards."""
