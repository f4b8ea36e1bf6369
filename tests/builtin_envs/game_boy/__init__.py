"""The Game Boy env with a cartridge of a few instructions."""
