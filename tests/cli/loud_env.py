"""An env that prints: in Python, and straight to its descriptor as native code does. For tests of what is printed."""

from __future__ import annotations

import os
from typing import Any

from tests.envs import Walk

print("loud: imported")


class Loud(Walk):
    def reset(self, **kwargs: Any) -> Any:
        print("loud: reset", flush=True)
        os.write(1, b"loud: native\n")
        return super().reset(**kwargs)
