"""Comparisons with AgileRL's AsyncPettingZooVecEnv."""
