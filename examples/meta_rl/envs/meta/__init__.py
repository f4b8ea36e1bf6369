"""Environments with tasks."""
