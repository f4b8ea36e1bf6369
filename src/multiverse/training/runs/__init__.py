"""Runs on disk: directory and lock, checkpoints, metric and episode files, provenance. Imports neither torch nor envs."""
