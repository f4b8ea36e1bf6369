"""Maths of learning: distributions, returns, normalisers, optimizers, layers in numpy. Independent of environments."""
