"""Orders of an epoch, as functions of the seed and the place."""
