"""Parts of the soak test: an env with scheduled faults, signals from outside, and auditors of the results."""
