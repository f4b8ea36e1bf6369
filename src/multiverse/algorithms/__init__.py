"""Agents: one readable file per algorithm."""
