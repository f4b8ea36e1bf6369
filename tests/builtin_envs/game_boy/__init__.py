"""The Game Boy env, on a cartridge of a few instructions."""
