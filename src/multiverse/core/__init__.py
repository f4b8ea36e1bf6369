"""Types that every room shares. Imports no other room, starts no process and allocates no shared memory."""
