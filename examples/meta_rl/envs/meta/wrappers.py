"""`VariBadWrapper`, the document's name of `mv.MetaEpisode(env, episodes_per_task)`: k episodes of one task as one."""

from __future__ import annotations

import multiverse as mv


class VariBadWrapper(mv.MetaEpisode):
    """Wrapper that plays k episodes of one task as one episode, with Box actions in [-1, 1].

    A done flag is appended to observations if k > 1, and the task if `oracle` is set.
    """
