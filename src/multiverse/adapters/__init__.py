"""L1: a foreign env becomes an Env. One file per kind of env; nothing here knows where the env runs."""
