"""Document 003, working: teams that learn, in one process and in many. README.md walks through it."""
