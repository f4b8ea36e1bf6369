"""Comparisons with Gymnasium's own vector envs."""
