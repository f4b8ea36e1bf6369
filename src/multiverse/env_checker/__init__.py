"""Checks one env: what is wrong with it, as many copies of it in parallel show. (`check_env` is the public function.)

Public here is what it returns.
"""

from multiverse.env_checker.report import CheckReport, CheckRun, Finding

__all__ = ["CheckReport", "CheckRun", "Finding"]
