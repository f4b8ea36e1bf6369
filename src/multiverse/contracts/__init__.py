"""L0: the words everybody shares. Imports nothing else of multiverse, starts nothing, owns no memory."""
