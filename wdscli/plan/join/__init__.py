"""Samples of several sets beside each other."""
