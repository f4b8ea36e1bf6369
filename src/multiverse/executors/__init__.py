"""L2: where envs run. Hosts behind one small protocol, the worker loop, and what must be checked before starting."""
