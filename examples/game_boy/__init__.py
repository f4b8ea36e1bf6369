"""Document 004: PPO on several Game Boys in parallel. See README.md."""
