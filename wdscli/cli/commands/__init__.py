"""One module for each command, imported when the command is called. Its main function has the command's name."""
