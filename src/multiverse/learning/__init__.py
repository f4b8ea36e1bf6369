"""Maths of learning: distributions, returns, normalisers, optimizers, layers in numpy. Starts no process and knows no environment."""
