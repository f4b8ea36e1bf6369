"""Maths of learning: distributions, returns, normalisers, optimizers, and layers in numpy. Knows no environments."""
