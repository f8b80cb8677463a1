"""Samples by place, from shards."""
