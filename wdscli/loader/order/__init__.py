"""This package computes the order of an epoch, which depends only on the seed, the epoch and the set."""
