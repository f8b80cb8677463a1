"""This package makes planned shards from byte ranges of the inputs."""
