"""Learning: the maths of agents, in torch. Starts no processes and knows no envs."""
