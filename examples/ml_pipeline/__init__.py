"""Document 001: PPO from the command line, on many environments in parallel. See README.md."""
