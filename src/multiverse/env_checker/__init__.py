"""Checks of one env, for its use in vector envs and training (`mv.check_env`)."""

from multiverse.env_checker.report import CheckReport, CheckRun, Finding

__all__ = ["CheckReport", "CheckRun", "Finding"]
