"""Beside Stable-Baselines3's own."""
