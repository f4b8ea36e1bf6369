"""Learners and what acts."""
