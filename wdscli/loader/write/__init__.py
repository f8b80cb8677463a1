"""Samples of training code into shards."""
