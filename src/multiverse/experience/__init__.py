"""Experience: what a policy did in many envs, collected into windows. Numpy only: no torch below this roof."""
