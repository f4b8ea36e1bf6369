"""The second document, working: PPO from the command line, over many envs in parallel. README.md walks through it."""
