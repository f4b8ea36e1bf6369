"""Wrappers: one env becomes another. They import the types of `core/` and foreign envs, but no vector env."""
