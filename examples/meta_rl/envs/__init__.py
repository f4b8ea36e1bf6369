"""The document's module paths; what they hold is `multiverse` under the document's names."""
