"""This package has the stages of a dataset's pipeline."""
