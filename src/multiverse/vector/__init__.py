"""Vector envs: `make_vec`, and the three kinds it makes (`single`, `parallel`, `turns`) over one `base`.

They know executors and shared memory, and nothing of learning.
"""
