"""The document's second program."""
