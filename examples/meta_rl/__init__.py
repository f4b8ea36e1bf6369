"""The third document, working: rollouts of many tasks, collected in parallel. README.md walks through it."""
