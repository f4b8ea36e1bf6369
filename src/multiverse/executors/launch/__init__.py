"""Starting worker processes: by a fork server of our own, by fork, or fresh; each dies with the caller."""
