"""Views of plans: sets that name the bytes of other shards instead of holding them."""
