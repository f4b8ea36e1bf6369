"""Of the document's module paths."""
