"""One module a command, imported when the command is called. Each has a function of the command's name."""
