"""Every setting of a run as the command line knows it: its flag, the other names people call it, and its help."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from multiverse.cli.commands.bench import parsed_kwargs
from multiverse.contracts.errors import InvalidConfig
from multiverse.training.config.build import build, in_type_words, nearest
from multiverse.training.config.files import parse_config
from multiverse.training.config.train_config import TrainConfig

SYNONYMS = {
    "num_envs": ("n_envs",),
    "env_steps": ("total_timesteps", "timesteps"),
    "episodes": ("num_episodes",),
    "learning_rate": ("lr",),
    "epochs": ("n_epochs", "update_epochs"),
    "steps_per_env": ("n_steps", "num_steps"),
    "batch_size": ("minibatch_size",),
    "entropy_coef": ("ent_coef",),
    "value_coef": ("vf_coef",),
    "clip_range": ("clip_coef",),
    "value_clip_range": ("clip_range_vf",),
    "normalize_advantages": ("normalize_advantage", "norm_adv"),
    "hidden_sizes": ("net_arch",),
    "workers": ("num_workers",),
    "start_method": ("parallel_start_method",),
    "evaluate_every": ("eval_every", "eval_freq"),
    "evaluation_episodes": ("n_eval_episodes",),
}
"""What other libraries call it."""

PLAIN_WORDS = {
    "agent": "Which agent learns.",
    "learning_rate": "How far one gradient step goes.",
    "clip_range_schedule": "`linear`: down to 0 at the end of the budget.",
    "value_coef": "How much the value function's error counts in the loss.",
    "max_grad_norm": "Longer gradients are cut to this length.",
    "normalize_advantages": "Advantages of a batch with mean 0 and spread 1.",
    "hidden_sizes": "Units of each hidden layer.",
    "activation": "Between the layers.",
    "normalize_observations": "Learn from observations with mean 0 and spread 1, as seen so far.",
    "normalize_rewards": "Learn from rewards on the scale of the returns seen so far.",
}
"""For fields that say nothing of themselves."""


@dataclass(frozen=True)
class Setting:
    """One field of a config."""

    name: str
    group: str  # "run", or the agent's name
    kind: Any
    default: Any
    help: str

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def other_flags(self) -> tuple[str, ...]:
        return tuple(f"--{name.replace('_', '-')}" for name in SYNONYMS.get(self.name, ()))

    @property
    def is_switch(self) -> bool:
        return self.kind is bool

    @property
    def is_list(self) -> bool:
        return get_origin(self.kind) in (tuple, list)

    @property
    def metavar(self) -> str:
        """What stands after the flag in the help."""
        kinds = _alternatives(self.kind)
        choices = [one for kind in kinds if get_origin(kind) is Literal for one in get_args(kind)]
        if choices:
            return "{" + ",".join(choices) + "}"
        if self.name == "env_kwargs":
            return "JSON"
        inner = get_args(self.kind)[0] if self.is_list else next(kind for kind in kinds if kind is not type(None))
        return str(getattr(inner, "__name__", "value")).upper()

    def read(self, words: list[str], place: str) -> Any:
        """The value that these words of a command line mean; `InvalidConfig` if they mean none."""
        if self.name == "env_kwargs":
            return parsed_kwargs(words[0])
        if self.is_list:
            return self.checked([_scalar(one, int) for word in words for one in word.split(",") if one], place)
        kinds = _alternatives(self.kind)
        return self.checked(words[0] if kinds == (str,) else _scalar(words[0], *kinds), place)

    def checked(self, value: Any, place: str) -> Any:
        """The value as this field has it; `InvalidConfig` says what is wrong with it at this place."""
        try:
            fitting: Any = build(dataclasses.make_dataclass("OneField", [(self.name, self.kind)]), {self.name: value})
        except InvalidConfig as error:
            raise InvalidConfig(place, error.wrong, error.hint) from None
        return getattr(fitting, self.name)


AGENTS_OWN = Setting("ppo", "run", dict[str, Any], {}, "Settings of PPO, in a section of their own.")
ENV = Setting("env", "run", str, "", "A Gymnasium id, or module:name of something that builds an env.")


def all_settings() -> dict[str, Setting]:
    """By name, those of the run first; `env` and `ppo` (a section of its own) are none of them."""
    run = {one.name: one for one in _fields_of(TrainConfig(), "run") if one.name not in ("env", "ppo")}
    return run | {one.name: one for one in _fields_of(TrainConfig().ppo, "ppo")}


def no_such(place: str, name: str, known: list[str]) -> InvalidConfig:
    """An error with the setting that was probably meant."""
    meant = next((ours for ours, theirs in SYNONYMS.items() if name in theirs and ours in known), None)
    hint = f"Did you mean {meant}?" if meant else nearest(name, known)
    if name in all_settings():
        hint = "It is a setting of the run: it belongs outside this section"
    return InvalidConfig(place, "there is no such setting", hint)


def in_short(value: Any) -> str:
    """A default as one would type it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value))
    return "{}" if value == {} else f"{value:g}" if isinstance(value, float) else str(value)


def table() -> str:
    """Every setting in Markdown, for docs/training.md."""
    rows = ["| setting | other names | value | default | |", "|---|---|---|---|---|"]
    for one in all_settings().values():
        others = ", ".join(f"`{name}`" for name in SYNONYMS.get(one.name, ()))
        words = in_type_words(one.kind).replace("|", "\\|")
        rows.append(f"| `{one.name}` | {others} | {words} | {in_short(one.default)} | {one.help} |")
    return "\n".join(rows)


def _fields_of(config: Any, group: str) -> list[Setting]:
    kinds, words = typing.get_type_hints(type(config)), field_words(type(config))
    return [
        Setting(
            field.name,
            group,
            kinds[field.name],
            getattr(config, field.name),
            words.get(field.name) or PLAIN_WORDS.get(field.name, field.name),
        )
        for field in dataclasses.fields(config)
    ]


def field_words(config: type) -> dict[str, str]:
    """What stands below each field of a dataclass, in one line."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for field, below in zip(node.body, node.body[1:]):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = " ".join(words.split())
    return found


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _scalar(word: str, *kinds: Any) -> Any:
    """A word as a config file would have it; whole numbers may be written 1e6 here, and nothing as none."""
    if word.lower() == "none" and type(None) in kinds:
        return None
    try:
        value = parse_config(f"value: {word}")["value"]
    except InvalidConfig:
        return word
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    return value
