"""AgileRL's own class, where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

with_agilerl = importlib.util.find_spec("agilerl") is not None

if with_agilerl:
    import agilerl.vector.pz_async_vec_env as module

    class Original(module.AsyncPettingZooVecEnv):
        """The original with the one additional name of the model."""

        def step_each(self, each: Sequence[dict[str, Any]]) -> Any:
            self.step_async(list(each))
            return self.step_wait()

else:
    module = Original = None
