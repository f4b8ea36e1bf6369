"""Shared memory between processes: one block, numpy views by layout, doorbells and the rule for waiting. Handles bytes only."""
