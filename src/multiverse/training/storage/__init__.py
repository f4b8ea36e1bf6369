"""Runs on disk: directory and lock, checkpoints, metric and episode files, provenance. Knows neither torch nor envs."""
