"""Metadata to a plan."""
