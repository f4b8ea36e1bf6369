"""Runs on disk: directory, lock, checkpoints, metric and episode files, provenance. Imports neither torch nor envs."""
