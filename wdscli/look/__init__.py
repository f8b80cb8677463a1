"""What is in a set."""
