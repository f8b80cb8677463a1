"""The place of a process in an epoch: ranks, workers, states."""
