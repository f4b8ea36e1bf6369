"""Lantern Vale: a small adventure for the Game Boy, built for this project; README.md tells how to play and to read it."""
