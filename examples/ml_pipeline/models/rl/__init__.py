"""Part of the document's module paths."""
