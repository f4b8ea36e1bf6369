"""Config files are read strictly (row E2), and typed configs are built from them and written back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multiverse.core.errors import InvalidConfig, InvalidRequest
from multiverse.training.config.build import as_plain, build
from multiverse.training.config.files import dump_yaml, parse_config, read_config
from multiverse.training.config.resolve import config_for


@dataclass(frozen=True, kw_only=True)
class Network:
    sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"


@dataclass(frozen=True, kw_only=True)
class Training:
    env: str
    learning_rate: float = 3e-4
    epochs: int = 4
    normalise: bool = True
    target_return: float | None = None
    network: Network = Network()
    critic: Network | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    seeds: int | list[int] = 1

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs={self.epochs}: at least 1")


# -- YAML ------------------------------------------------------------------------------------------------------
@pytest.mark.fault("E2")
@pytest.mark.parametrize(
    "text, value",
    [
        ("1e-3", 1e-3), ("1E5", 1e5), ("1e5", 1e5), ("3.", 3.0), (".5", 0.5), ("-1.5e+3", -1500.0),
        (".inf", float("inf")),
        ("100_000", 100_000), ("0x1F", 31), ("-7", -7), ("+7", 7), ("0", 0), ("true", True), ("False", False),
        ("null", None), ("~", None), ("", None), ("no", "no"), ("on", "on"), ("yes", "yes"),
        ("2026-01-01", "2026-01-01"),
        ("1:30", "1:30"), ("010", "010"), ("'1e-3'", "1e-3"), ('"true"', "true"), ("1e", "1e"),
        ("my.mod:make", "my.mod:make"),
        ("ALE/Pong-v5", "ALE/Pong-v5"), ("[1, 2.0, a]", [1, 2.0, "a"]), ("{a: {b: 1}}", {"a": {"b": 1}}), ("=", "="),
    ],
)  # fmt: skip
def test_scalars_are_parsed_by_their_form(text: str, value: Any) -> None:
    found = parse_config(f"key: {text}")["key"]
    assert found == value and type(found) in (type(value), *type(value).__subclasses__())


@pytest.mark.fault("E2")
def test_keys_must_be_text() -> None:
    assert parse_config("on: no") == {"on": "no"}
    assert parse_config("") == {} == parse_config("# nothing\n")
    with pytest.raises(InvalidConfig, match="line 2: the key 1 is not text"):
        parse_config("a: 1\n1: b")


@pytest.mark.fault("E2")
@pytest.mark.parametrize(
    "text, wrong",
    [
        ("a: 1\nb: 2\na: 3", "line 3: a is given twice, first in line 1"),
        ("a:\n  b: 1\n  b: 1", "line 3: b is given twice"),
        ("a: !!python/object/apply:os.system [touch harm]", "line 1: the tag .*os.system is not supported"),
        ("a: !!python/name:os.system", "tag"),
        ("a: !!binary aGk=", "the tag !!binary is not supported"),
        ("a: !!set {x}", "tag"),
        ("a: !!int text", "tag"),
        ("!!omap [a: 1]", "expected lines"),
        ("a: !mine 1", "the tag !mine"),
        ("<<: *nowhere", "undefined alias"),
        ("- 1", "line 1: expected lines"),
        ("text", "expected lines"),
        ("a: 1\n---\nb: 2", "line 2: is not valid YAML"),
        ("a: [1\nb: 2", "line 2: is not valid YAML"),
        ("a: \t- b", "is not valid YAML"),
        ("a: 'open", "is not valid YAML"),
        ("a: \x00", "is not valid YAML"),
        ("%YAML 9.9\n---\na: 1", "is not valid YAML"),
        ("? [a]\n: 1", r"the key \['a'\] is not text"),
        (f"a: {'9' * 5000}", "a number with 5000 digits"),
        ("a: " + "[" * 60 + "]" * 60, "nested deeper than 40"),
        ("a: " + "[" * 20_000, "nested deeper than 40"),
        ("a: &x [*x]", "nested deeper than 40"),
        ("a: &x {b: *x}", "nested deeper than 40"),
    ],
    ids=lambda text: text[:24],
)
def test_invalid_file_is_refused_with_its_line(text: str, wrong: str) -> None:
    with pytest.raises(InvalidConfig, match=wrong):
        parse_config(text, "train.yaml")


@pytest.mark.fault("E2")
def test_exponential_aliases_are_refused() -> None:
    bomb = "a0: &a0 [ha, ha]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    with pytest.raises(InvalidConfig, match=r"more than 20,000 values \(aliases expanded\)"):
        parse_config(bomb)


@pytest.mark.fault("E2")
def test_aliases_become_independent_copies() -> None:
    found = parse_config("a: &x {b: [1]}\nc: *x")
    found["a"]["b"].append(2)
    assert found == {"a": {"b": [1, 2]}, "c": {"b": [1]}}


@pytest.mark.fault("E2")
def test_missing_binary_or_too_large_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    with pytest.raises(InvalidConfig, match=r"train\.yaml: cannot be read"):
        read_config(path)
    path.write_bytes(b"a: \xff\n")
    with pytest.raises(InvalidConfig, match="byte 3 is not UTF-8"):
        read_config(path)
    path.write_text("a: 1\n" + "#" * 2**18)
    with pytest.raises(InvalidConfig, match="larger than 256 KiB"):
        read_config(path)
    path.write_text("a: 1\n")
    assert read_config(path) == {"a": 1}


def plain_values() -> st.SearchStrategy[Any]:
    text = st.text(st.characters(exclude_categories=["Cs"]))
    hard = st.sampled_from(
        ["1e-3", "no", "null", "~", "0x1", "1_0", ".inf", "<<", "=", "- a", "a: b", "#", "", " ", "\t"]
    )
    leaves = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | text | hard
    return st.recursive(
        leaves,
        lambda below: st.lists(below, max_size=4) | st.dictionaries(text | hard, below, max_size=4),
        max_leaves=10,
    )


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), plain_values(), max_size=4))
def test_written_config_is_read_as_the_same(config: dict[str, Any]) -> None:
    assert typed(parse_config(dump_yaml(config))) == typed(config)


def typed(value: Any) -> Any:
    """Values with their types, because 1 == 1.0 == True."""
    if isinstance(value, dict):
        return {key: typed(one) for key, one in value.items()}
    return [typed(one) for one in value] if isinstance(value, list) else (type(value), value)


# -- typed configs ---------------------------------------------------------------------------------------------
def test_config_is_built_and_written_back() -> None:
    text = """
    env: CartPole-v1
    learning_rate: 1
    target_return: 475
    network: {sizes: [32], activation: relu}
    critic: {}
    betas: [0, 0.5]
    env_kwargs: {g: 9.8, nested: {a: [1]}}
    seeds: [1, 2]
    """
    config = build(Training, parse_config(text))
    assert config == Training(
        env="CartPole-v1", learning_rate=1.0, target_return=475.0, network=Network(sizes=(32,), activation="relu"),
        critic=Network(), betas=(0.0, 0.5), env_kwargs={"g": 9.8, "nested": {"a": [1]}}, seeds=[1, 2],
    )  # fmt: skip
    assert isinstance(config.learning_rate, float) and isinstance(config.betas[0], float)
    assert build(Training, as_plain(config)) == config
    assert build(Training, parse_config(dump_yaml(as_plain(config)))) == config


@pytest.mark.fault("E2")
@pytest.mark.parametrize(
    "text, wrong",
    [
        ("env: x\nlearning_rat: 1", "line 2: learning_rat: there is no such setting. Did you mean learning_rate?"),
        ("env: x\nLearning-Rate: 1", "Did you mean learning_rate?"),
        ("env: x\nzzz: 1", "There are: betas, critic, env, env_kwargs, epochs"),
        ("env: x\nnetwork:\n  sices: [1]", "line 3: network.sices: there is no such setting. Did you mean sizes?"),
        ("env: x\nlearning_rate: fast", "line 2: learning_rate: expected a number, found the text 'fast'"),
        ("env: x\nlearning_rate: true", "expected a number, found true"),
        ("env: x\nlearning_rate:", "expected a number, found nothing"),
        ("env: x\nepochs: 2.5", "epochs: expected a whole number, found 2.5"),
        ("env: x\nepochs: 1e6", "found 1000000.0. Write 1_000_000"),
        ("env: x\nepochs: true", "expected a whole number, found true"),
        ("env: x\nnormalise: no", "normalise: expected true or false, found the text 'no'"),
        ("env: x\nnormalise: 1", "expected true or false, found 1"),
        ("env: 5", "env: expected text, found 5"),
        ("env: x\nnetwork: {activation: rulu}", "expected one of tanh, relu, found 'rulu'. Did you mean relu?"),
        ("env: x\nnetwork: big", "expected settings (name: value), found the text 'big'"),
        ("env: x\nnetwork: {sizes: 64}", "network.sizes: expected a list (a whole number each), found 64"),
        ("env: x\nnetwork: {sizes: [64, a]}", "network.sizes[1]: expected a whole number, found the text 'a'"),
        ("env: x\ncritic: {sizes: [a]}", "critic.sizes[0]: expected a whole number"),
        ("env: x\nbetas: [1, 2, 3]", "betas: expected 2 values, found 3"),
        ("env: x\nnames: abc", "names: expected a list (text each), found the text 'abc'"),
        ("env: x\ntarget_return: high", "expected a number, found the text 'high'"),
        ("env: x\nseeds: many", "expected a whole number or a list (a whole number each), found the text 'many'"),
        ("env: x\nenv_kwargs: 3", "expected settings (name: value), found 3"),
        ("learning_rate: 1", "train.yaml: env must be given"),
        ("env: x\nepochs: 0", "train.yaml, line 2: epochs=0: at least 1"),
    ],
    ids=lambda text: text[-24:],
)
def test_invalid_config_error_names_line_setting_and_reason(text: str, wrong: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        build(Training, parse_config(text, "train.yaml"), "train.yaml")
    assert wrong in str(refused.value)
    assert str(refused.value).startswith("train.yaml")
    assert isinstance(refused.value, InvalidRequest) and isinstance(refused.value, ValueError)


@pytest.mark.parametrize("nothing", [None, "none", "None"])
def test_none_can_be_typed_for_optional_settings(nothing: Any) -> None:
    asked = {"memory": nothing, "target_return": nothing, "evaluation_opponent": nothing}
    found = config_for("CartPole-v1", "sac", asked, preset=False)
    assert (found.settings.memory, found.target_return, found.evaluation_opponent) == (None, None, None)
    in_file = parse_config(f"memory: {nothing or ''}")
    assert config_for("multiverse/PointRobotSparse-v0", "sac", in_file).settings.memory is None  # from its preset: gru
    with pytest.raises(InvalidConfig, match="gamma: expected a number"):
        config_for("CartPole-v1", "sac", {"gamma": nothing})


def test_errors_without_a_file_name_the_field() -> None:
    with pytest.raises(InvalidConfig, match=r"^network\.sizes: expected a list"):
        build(Training, {"env": "x", "network": {"sizes": 3}})
    with pytest.raises(InvalidConfig, match=r"^--config: network\.sizes: expected a list"):
        build(Training, {"env": "x", "network": {"sizes": 3}}, "--config")


def test_value_that_no_file_can_hold_is_refused_by_name() -> None:
    with pytest.raises(InvalidConfig, match=r"env_kwargs\.make: .* cannot be written to a file"):
        as_plain(Training(env="x", env_kwargs={"make": object()}))


@pytest.mark.fault("E2")
def test_reading_and_building_import_nothing_named_in_the_file(tmp_path: Path) -> None:
    import sys

    (tmp_path / "harmful_module.py").write_text("raise AssertionError('imported')")
    sys.path.insert(0, str(tmp_path))
    try:
        config = build(Training, parse_config("env: harmful_module:make\nenv_kwargs: {a: harmful_module}"))
    finally:
        sys.path.remove(str(tmp_path))
    assert config.env == "harmful_module:make" and "harmful_module" not in sys.modules


def test_old_import_of_config_for_works_with_a_warning() -> None:
    from multiverse.training.config import resolve, train_config

    with pytest.warns(DeprecationWarning, match=r"config_for is now in multiverse\.training\.config\.resolve"):
        assert train_config.config_for is resolve.config_for  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = train_config.no_such_name  # type: ignore[attr-defined]
