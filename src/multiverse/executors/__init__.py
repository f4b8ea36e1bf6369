"""Execution of envs: hosts behind one small protocol, the worker loop, and what must be checked before starting."""
