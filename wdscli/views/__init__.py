"""This package makes views from plans. A view is a set that names the bytes of other shards, and has no payloads
itself."""
