"""Module paths of the document; the modules give parts of `multiverse` the document's names."""
