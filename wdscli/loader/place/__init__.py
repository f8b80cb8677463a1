"""Where in an epoch a process is: ranks, workers, states."""
