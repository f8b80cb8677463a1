"""One module for each command: its function takes input and output as arguments, returns a report, and never prints."""
