"""Experience: what a policy did in many envs, collected into rollouts. Numpy only: no torch below this roof."""
