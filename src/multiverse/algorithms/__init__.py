"""Algorithms: one readable file per algorithm."""
