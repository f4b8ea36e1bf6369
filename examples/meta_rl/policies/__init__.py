"""Learners and agents."""
