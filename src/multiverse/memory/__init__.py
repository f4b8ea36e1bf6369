"""L1: shared bytes. One block, numpy views by layout, doorbells and the rule for waiting. Knows bytes, not RL."""
