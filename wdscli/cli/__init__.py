"""The command line: it parses options, calls one function of ``ops``, and prints the report. Only this package imports
Typer and rich."""
