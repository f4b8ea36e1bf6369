"""Old name of `multiverse.policies` and `multiverse.rollouts`, for one version."""

import importlib
import sys
import warnings

warnings.warn(
    "multiverse.experience is now multiverse.policies and multiverse.rollouts; the old name goes in the next version",
    DeprecationWarning,
    stacklevel=2,
)
for _room, _names in {"policies": ("features", "heads", "numpy_policies"), "rollouts": ("rollout", "replay")}.items():
    for _name in _names:
        sys.modules[f"{__name__}.{_name}"] = importlib.import_module(f"multiverse.{_room}.{_name}")
