"""Tests. This module is imported before all of them, hence before numpy and torch, which read these variables then."""

import os

# One thread for BLAS and torch, as every training and every worker has: where several tests run at once, threads that
# wait for each other spin, and take the cores from the tests beside them. Programs that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
