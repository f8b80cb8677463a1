"""The stages of a dataset's pipeline."""
