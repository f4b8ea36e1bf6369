"""Today this is `mv.MetaEpisode(env, episodes_per_task)`: k episodes of one task as one, under the document's name."""

from __future__ import annotations

import multiverse as mv


class VariBadWrapper(mv.MetaEpisode):
    """A done flag is appended to observations where there are several episodes, the task where there is an `oracle`;
    Box actions are in [-1, 1]."""
