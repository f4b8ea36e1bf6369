"""Beside AgileRL's AsyncPettingZooVecEnv."""
