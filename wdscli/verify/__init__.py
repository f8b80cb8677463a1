"""What is wrong with shards."""
