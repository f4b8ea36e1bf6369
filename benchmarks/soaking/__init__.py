"""The soak's parts: an env with a fate, signals from outside, and those who check what came of it."""
