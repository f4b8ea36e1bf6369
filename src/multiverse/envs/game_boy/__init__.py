"""Game Boy worlds."""
