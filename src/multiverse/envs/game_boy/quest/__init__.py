"""Lantern Vale, a small adventure for the Game Boy that is ours: README.md says how to play it and to read its RAM."""
