"""L3: checking one env: what is wrong with it, seen from many copies of it running in parallel."""
