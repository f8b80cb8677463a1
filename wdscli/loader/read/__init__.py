"""Reading samples of shards by their places."""
