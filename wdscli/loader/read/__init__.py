"""This package reads samples of shards by their places in the shards."""
