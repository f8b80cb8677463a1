"""Stages of a pipeline."""
