"""The command line: options in, one call into ``ops``, a report out. The only room that knows Typer and rich."""
