"""Game Boy games as envs: any cartridge that you own, with a YAML file that says what its RAM means."""

from multiverse.envs.game_boy.env import GameBoyEnv

__all__ = ["GameBoyEnv"]
