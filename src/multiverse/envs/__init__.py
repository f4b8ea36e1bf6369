"""Built-in environments, one file or folder each. They know the contracts, and nothing of the engine."""
