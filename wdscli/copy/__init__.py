"""A planned shard out of byte ranges."""
