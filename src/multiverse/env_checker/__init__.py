"""Checks one env: what is wrong with it, as many copies of it in parallel show (`mv.check_env`)."""
