"""Several sets drawn as one."""
