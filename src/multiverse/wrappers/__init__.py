"""Env wrappers. They import the shared types of `core/`, but no vector env."""
