"""Adapters that present Gymnasium and PettingZoo envs as one contract, `Env`, independent of where the env runs."""
