"""Implementations of the source documents, one folder per document. README.md has the table."""
