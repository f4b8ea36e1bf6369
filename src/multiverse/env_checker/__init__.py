"""Checks one env: what is wrong with it, as many copies of it in parallel show (`mv.check_env`)."""

from multiverse.env_checker.report import CheckReport, CheckRun, Finding

__all__ = ["CheckReport", "CheckRun", "Finding"]
