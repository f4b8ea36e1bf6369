"""Checks of one env, alone and as several copies in parallel. `check_env` is the public function."""
