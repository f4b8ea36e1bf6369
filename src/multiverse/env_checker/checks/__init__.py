"""The checks, one file per subject. Each is a function over a `Subject` that yields findings, run in the worker."""
