"""Envs with tasks."""
