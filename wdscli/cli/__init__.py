"""The command line: it parses options, calls one function of ``ops``, and prints the report. Only this package imports
Typer and rich."""

MORE = "+"
"""The first character in the heading of an option that only ``--help-all`` shows."""
