"""Training: configs, run directories, checkpoints and metrics on disk, and the trainer that brings them together.

The modules about files know neither torch nor envs.
"""
