"""Wrappers: one env becomes another. They know the words of `contracts/` and foreign envs, and nothing of vectors."""
