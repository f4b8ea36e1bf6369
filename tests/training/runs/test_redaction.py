"""Row E6: no file of a run contains secrets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from multiverse.training.runs.checkpoint import Checkpoints
from multiverse.training.runs.origin import (
    REDACTED,
    is_secret,
    provenance,
    redacted,
    redacted_command,
    redacted_fields,
)
from multiverse.training.runs.run_directory import RunDirectory

SECRET = "hunter2-swordfish"


@pytest.mark.fault("E6")
@pytest.mark.parametrize(
    "name",
    [
        "key", "api_key", "API_KEY", "apiKey", "token", "auth-token", "password", "passwd", "client_secret",
        "pwd", "DB_PWD", "authorization", "Authorization", "bearer", "http_auth", "credential", "session_cookie",
    ],
)  # fmt: skip
def test_secret_names_are_redacted(name: str) -> None:
    assert is_secret(name)
    assert redacted({name: SECRET}) == {name: REDACTED}


@pytest.mark.parametrize("name", ["keys_pressed", "keyboard", "token_count", "secrets_found", "learning_rate", "env"])
def test_other_names_are_not_redacted(name: str) -> None:
    assert not is_secret(name)
    assert redacted({name: "x"}) == {name: "x"}


@pytest.mark.fault("E6")
def test_secrets_are_redacted_at_any_depth_in_a_copy() -> None:
    config: dict[str, Any] = {
        "env_kwargs": {"api_key": SECRET, "level": 3},
        "sinks": [{"kind": "web", "token": SECRET}, ({"password": 12345},)],
        "secret": {"a": SECRET, "b": [SECRET]},
        "use_token": True,
        "no_key": None,
    }
    result = redacted(config)
    assert SECRET not in str(result) and "12345" not in str(result)
    assert result["env_kwargs"] == {"api_key": REDACTED, "level": 3}
    assert result["secret"] == REDACTED
    assert (result["use_token"], result["no_key"]) == (True, None)
    assert config["env_kwargs"]["api_key"] == SECRET
    assert redacted_fields(result) == ["env_kwargs.api_key", "sinks[0].token", "sinks[1][0].password", "secret"]


@pytest.mark.fault("E6")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-key", SECRET],
        [f"--api-key={SECRET}"],
        ["--env-kwargs", json.dumps({"level": 3, "api_key": SECRET})],
        ["--env-kwargs", f"{{'api_key': '{SECRET}', 'level': 3}}"],
        [f"env.password={SECRET}"],
        ["--address", f"https://me:{SECRET}@example.org/x"],
        ["--address", f"https://me:with@{SECRET}@example.org/x"],
        ["--address", f"https://example.org/x?level=3&api_key={SECRET}"],
        ["--header", f"Authorization: Bearer {SECRET}"],
        ["--header", f'{{"Authorization": "Basic {SECRET}", "level": 3}}'],
        ["--pwd", SECRET],
        ["--bearer", SECRET],
        ["-token", SECRET],
    ],
)
def test_command_line_is_written_without_its_secrets(arguments: list[str]) -> None:
    result = redacted_command(["train", *arguments, "--seed", "1"])
    assert SECRET not in " ".join(result) and REDACTED in " ".join(result)
    assert result[0] == "train" and result[-2:] == ["--seed", "1"]


ADDRESS = f"postgresql://me:{SECRET}@example.org:5432/worlds"


@pytest.mark.fault("E6")
def test_password_in_a_url_is_redacted_everywhere_and_listed() -> None:
    config: dict[str, Any] = {"env_kwargs": {"url": ADDRESS, "more": [ADDRESS, ("x", ADDRESS)], "plain": "https://a.b"}}
    result = redacted(config)
    hidden = ADDRESS.replace(SECRET, REDACTED)
    assert result["env_kwargs"] == {"url": hidden, "more": [hidden, ("x", hidden)], "plain": "https://a.b"}
    assert redacted_fields(result) == ["env_kwargs.url", "env_kwargs.more[0]", "env_kwargs.more[1][1]"]
    assert redacted(result) == result


@pytest.mark.parametrize("text", ["https://example.org:8080/path@2", "key: it is text", "a/b:c@d", "monkey=3", ""])
def test_text_without_a_url_password_is_unchanged(text: str) -> None:
    assert redacted({"note": text, "notes": [text]}) == {"note": text, "notes": [text]}


def test_command_line_without_secrets_is_unchanged() -> None:
    command = [
        "multiverse",
        "train",
        "CartPole-v1",
        "--use-token",
        "--lr",
        "1e-3",
        "--env-kwargs",
        '{"keys_pressed": 3}',
    ]
    assert redacted_command(command) == command


@pytest.mark.fault("E6")
def test_no_file_of_a_run_has_a_secret_or_an_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_VARIABLE", f"{SECRET}-in-the-environment")
    monkeypatch.setattr(sys, "argv", ["train", "--api-key", SECRET])
    config = {"env": "CartPole-v1", "env_kwargs": {"api_key": SECRET, "url": ADDRESS, "headers": {"pwd": SECRET}}}
    with RunDirectory.create(tmp_path, env="CartPole-v1", algorithm="ppo", seed=1) as run:
        run.write_config(config)
        run.write_provenance(provenance(1))
        run.write_summary({"config": config, "error": f"EnvFailed: no answer from {ADDRESS}"})
        Checkpoints(run.checkpoints).save({"weights": 1}, {"config": config}, 10, best=True)
        files = [path for path in run.path.rglob("*") if path.is_file()]
        assert len(files) == 3 + 3 + 3 + 1
        assert [path.name for path in files if SECRET.encode() in path.read_bytes()] == []
        hidden = ["env_kwargs.api_key", "env_kwargs.url", "env_kwargs.headers.pwd"]
        assert redacted_fields(run.read_config()) == hidden


@pytest.mark.fault("E6")
@pytest.mark.parametrize(
    "value",
    [{"header": "Authorization: Bearer S3CRET"}, {"pass": "S3CRET"}, {"url": "https://S3CRET@example.org/x"}],
    ids=str,
)
def test_headers_logins_and_short_names_are_redacted(value: dict[str, str]) -> None:
    assert "S3CRET" not in str(redacted({"env_kwargs": value}))
