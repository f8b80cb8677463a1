"""This package has the place of a process in an epoch: ranks, workers and states."""
