"""The fifth document, working: Game Boys in parallel, and PPO that learns from them. README.md walks through it."""
