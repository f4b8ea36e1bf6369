"""Beside Gymnasium's own."""
