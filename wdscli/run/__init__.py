"""This package runs plans."""
