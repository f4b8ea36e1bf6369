"""Checks one env: what is wrong with it, as many copies of it in parallel show. (`check_env` is the public function.)"""
