"""Shared memory between processes: one block, numpy views by layout, doorbells and waiting."""
