"""An env that reports which copy of the package its process uses."""

from __future__ import annotations

import multiverse
from tests.envs import Walk


class Where(Walk):
    def where(self) -> str:
        return str(multiverse.__file__)
