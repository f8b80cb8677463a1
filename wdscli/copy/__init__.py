"""This package makes planned shards out of byte ranges."""
