"""Document 002: rollouts of many tasks, collected in parallel. See README.md."""
