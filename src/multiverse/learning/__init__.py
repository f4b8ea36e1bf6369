"""Learning: the maths of algorithms, in torch. Starts no processes and knows no envs."""
