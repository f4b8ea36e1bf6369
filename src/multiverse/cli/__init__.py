"""The command line. Parsing and printing only; one module per command, imported when it is called for."""
