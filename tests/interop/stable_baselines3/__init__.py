"""Comparisons with Stable-Baselines3's own vector envs."""
