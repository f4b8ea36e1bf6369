"""`multiverse train`: from flags, files and presets to a run, and its output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from multiverse.algorithms import ALGORITHMS
from multiverse.cli.commands.train import COMMAND, config_from, parser, train_options
from multiverse.cli.flags import all_settings, table
from multiverse.cli.main import main
from multiverse.core.errors import InvalidRequest
from multiverse.training import progress, scaling
from multiverse.training.config.files import read_config
from multiverse.training.config.other_libraries import SYNONYMS
from multiverse.training.runs.records import bootstrap_interval, interquartile_mean
from multiverse.training.saved_runs import checkpoint_of
from tests.cli.training_commands import SMALL, train

ROOT = Path(__file__).parents[2]


def config_of(*words: str) -> Any:
    return config_from(train_options(words))


# -- settings ----------------------------------------------------------------------------------------------------
def test_every_setting_has_a_flag_with_help() -> None:
    text = parser().format_help()
    for setting in [*COMMAND, *(one for group in all_settings().values() for one in group)]:
        assert f"\n  {setting.flags[0]}" in text
        assert setting.help.split()[0] in text
        for other in setting.flags[1:]:
            assert other in text
    assert max(map(len, text.splitlines())) <= 80


def test_inherited_settings_have_help_texts() -> None:
    words = {one.name: one.help for one in all_settings("a2c")["settings of a2c"]}
    # The default differs.
    assert words["steps_per_env"] == "Number of steps of each environment in one rollout, from which one update learns."
    assert words["learning_rate"] == "Step size of RMSprop." and words["gamma"] == "Discount factor."


def test_synonyms_belong_to_existing_settings() -> None:
    named = {one.name for name in ALGORITHMS for group in all_settings(name).values() for one in group}
    assert set(SYNONYMS) <= named


def test_settings_table_is_in_the_training_page() -> None:
    assert table() in (ROOT / "docs" / "training.md").read_text()


@pytest.mark.parametrize(
    ("typed", "name", "value"),
    [
        ("--n-envs 3", "num_envs", 3),
        ("--total-timesteps 1e5", "env_steps", 100_000),
        ("--timesteps 5_000", "env_steps", 5_000),
        ("--num-episodes 7", "episodes", 7),
        ("--minutes 0.5", "minutes", 0.5),
        ("--env_steps=99", "env_steps", 99),
        ("--parallel-start-method spawn", "start_method", "spawn"),
        ("--reply-timeout-s none", "reply_timeout_s", None),
    ],
)
def test_flag_synonyms_and_spellings_are_accepted(typed: str, name: str, value: Any) -> None:
    assert getattr(config_of("CartPole-v1", *typed.split()), name) == value


@pytest.mark.parametrize(
    ("typed", "name", "value"),
    [
        ("--lr 1e-2", "learning_rate", 0.01),
        ("--n-epochs 3", "epochs", 3),
        ("--share-features-extractor", "share_features", True),
        ("--n-steps 9", "steps_per_env", 9),
        ("--ent-coef 0.1", "entropy_coef", 0.1),
        ("--vf-coef 1", "value_coef", 1.0),
        ("--clip-coef 0.3", "clip_range", 0.3),
        ("--hidden-sizes 32 16", "hidden_sizes", (32, 16)),
        ("--hidden-sizes 32,16", "hidden_sizes", (32, 16)),
        ("--log-std-init -0.5", "log_std_init", -0.5),
        ("--normalize-rewards", "normalize_rewards", True),
        ("--no-normalize-advantages", "normalize_advantages", False),
        ("--lr 1 --lr 2", "learning_rate", 2.0),
    ],
)
def test_settings_of_the_algorithm_are_flags(typed: str, name: str, value: Any) -> None:
    assert getattr(config_of("CartPole-v1", *typed.split()).settings, name) == value


def test_env_after_a_list_valued_flag_is_the_env() -> None:
    config = config_of("--hidden-sizes", "32", "16", "CartPole-v1")
    assert (config.env, config.settings.hidden_sizes) == ("CartPole-v1", (32, 16))


def test_wrappers_are_a_list_and_a_following_env_is_the_env(elsewhere: Path) -> None:
    words = ["--wrappers", "gymnasium.wrappers:FlattenObservation", "gymnasium.wrappers:NormalizeReward"]
    config = config_of(*words, "CartPole-v1")
    assert (config.env, config.wrappers) == ("CartPole-v1", tuple(words[1:]))
    assert train(Path("one"), *words, env_steps=64) == 0
    returns = [json.loads(line)["return"] for line in Path("one/episodes.jsonl").read_text().splitlines()]
    assert returns and not any(one.is_integer() for one in returns)


def test_env_kwargs_flag_is_parsed_as_json() -> None:
    assert config_of("Pendulum-v1", "--env-kwargs", '{"g": 9.8}').env_kwargs == {"g": 9.8}


def test_env_kwargs_are_merged_with_those_of_the_preset(tmp_path: Path) -> None:
    theirs = {"curriculum": True, "episode_length": 500}
    assert config_of("multiverse/Quest-v0").env_kwargs == theirs
    mine = config_of("multiverse/Quest-v0", "--env-kwargs", '{"episode_length": 9, "x": 1}')
    assert mine.env_kwargs == {**theirs, "episode_length": 9, "x": 1}
    assert config_of("multiverse/Quest-v0", "--no-preset", "--env-kwargs", '{"x": 1}').env_kwargs == {"x": 1}
    file = tmp_path / "quest.yaml"
    file.write_text("env: multiverse/Quest-v0\nenv_kwargs: {curriculum: false}")
    assert config_of("--config", str(file)).env_kwargs == {**theirs, "curriculum": False}


# -- flags before the file, the file before the preset ---------------------------------------------------------------
def test_config_file_overrides_the_preset_and_flags_override_both(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("env: CartPole-v1\nlearning_rate: 0.5\nppo:\n  gamma: 0.5\n  epochs: 7\n")
    config = config_of("--config", str(file), "--gamma", "0.25")
    assert (config.env, config.settings.learning_rate, config.settings.gamma, config.settings.epochs) == (
        "CartPole-v1",
        0.5,
        0.25,
        7,
    )
    assert config.settings.gae_lambda == 0.8  # the value of the preset


ANT = str(ROOT / "examples" / "meta_rl" / "configs" / "ant_dir.yaml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--num-envs 2", "--num-envs: .* with 6; change .*ant_dir.yaml, line 10: env.num_parallel_workers instead"),
        ("--n-envs auto", "--num-envs: .* change .*ant_dir.yaml, line 10: env.num_parallel_workers instead"),
        ("--episodes-per-task 3", "--episodes-per-task: .* line 7: env.max_rollouts_per_task instead"),
        ("--steps-per-env 400", "--steps-per-env: .* with 800; .* line 15: train.num_rollouts_per_iter instead"),
        ("multiverse/Wind-v0", "multiverse/Wind-v0: .* with AntDir-v0; .* line 6: env.env_name instead"),
    ],
)
def test_flags_that_contradict_a_config_with_rollout_counts_are_refused(words: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        config_of("--config", ANT, *words.split())


def test_other_flags_override_a_config_with_rollout_counts() -> None:
    same = "AntDir-v0 --num-envs 6 --episodes-per-task 2 --steps-per-env 800"
    found = config_of("--config", ANT, *f"{same} --workers 2 --executor thread --seed 5 --gamma 0.5".split())
    assert (found.workers, found.executor, found.seed, found.settings.gamma) == (2, "thread", 5, 0.5)
    assert (found.env, found.num_envs, found.settings.steps_per_env) == ("multiverse/AntDir-v0", 6, 800)


def test_config_of_a_run_reproduces_the_run(elsewhere: Path) -> None:
    assert train(elsewhere / "one", "--seed", "3") == 0
    assert main(["train", "--config", "one/config.yaml", "--run-dir", "two"]) == 0
    assert read_config("one/config.yaml") == read_config("two/config.yaml")
    one, two = (json.loads(Path(name, "summary.json").read_text()) for name in ("one", "two"))
    assert one["evaluation"] == two["evaluation"] and one["episodes"] == two["episodes"]


def test_given_budget_replaces_the_one_it_overrides(tmp_path: Path) -> None:
    assert config_of("CartPole-v1").env_steps == 100_000
    by_time = config_of("CartPole-v1", "--minutes", "5")
    assert (by_time.env_steps, by_time.minutes) == (None, 5)
    file = tmp_path / "my.yaml"
    file.write_text("episodes: 9\n")
    in_file = config_of("CartPole-v1", "--config", str(file))
    assert (in_file.env_steps, in_file.episodes) == (None, 9)
    both = config_of("CartPole-v1", "--config", str(file), "--env-steps", "50")
    assert (both.env_steps, both.episodes) == (50, None)


def test_preset_can_be_that_of_another_env_or_none() -> None:
    assert config_of("Acrobot-v1", "--preset", "CartPole-v1").settings.gae_lambda == 0.8
    assert config_of("CartPole-v1", "--no-preset").settings.gae_lambda == 0.95


# -- what is refused ---------------------------------------------------------------------------------------------
def test_refusal_prints_only_the_error(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also a refusal that depends on the env's spaces."""
    assert main(["train", "CartPole-v1", "--algorithm", "sac", "--executor", "serial"]) == 2
    out, error = capsys.readouterr()
    assert out == "" and "sac: actions must be a Box of floats" in error and error.count("\n") == 1


FILES = {
    "typo.yaml": "env: CartPole-v1\nlearning_rte: 0.1\n",
    "nested.yaml": "env: CartPole-v1\nppo:\n  gama: 0.9\n",
    "text.yaml": "env: CartPole-v1\nnum_envs: eight\n",
    "inside.yaml": "env: CartPole-v1\nppo:\n  num_envs: 3\n",
    "synonym.yaml": "env: CartPole-v1\nlr: 3\n",
    "sb3.yaml": "env: CartPole-v1\npolicy: MlpPolicy\n",
    "empty.yaml": "env: CartPole-v1\nppo:\n",
    "twice.yaml": "env: CartPole-v1\ngamma: 0.9\nppo:\n  gamma: 0.8\n",
    "both.yaml": "env: CartPole-v1\nagent: ppo\nalgorithm: ppo\n",
    "list.yaml": "env: CartPole-v1\nalgorithm: [ppo]\n",
    "number.yaml": "env: 5\n",
}


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("", "ENV is missing; for example: `multiverse train CartPole-v1`"),
        ("CartPoel-v1", "did you mean CartPole-v1?"),
        ("cartpole", "did you mean CartPole-v1?"),
        ("pendulum_v1.py", "env='pendulum_v1.py' names a file, not an env in it. It cannot be read"),
        ("no_such_module:make", "no_such_module"),
        ("CartPole-v1 Pendulum-v1", "expected one ENV, got 2: CartPole-v1, Pendulum-v1"),
        ("CartPole-v1 --learnin-rate 3", "did you mean --learning-rate?"),
        (
            "CartPole-v1 --buffer-size=10",
            "--buffer-size is a setting of sac, td3, discrete_sac, dqn; the algorithm of this run is ppo",
        ),
        (
            "CartPole-v1 --algorithm dqn --no-squash",
            "--no-squash is a setting of ppo, a2c, taac; the algorithm of this run is dqn",
        ),
        (
            "CartPole-v1 --algorithm sac --clip-range 1",
            "--clip-range is a setting of ppo, taac; the algorithm of this run is sac",
        ),
        ("CartPole-v1 --no-memory", "there is no --no-memory: --memory needs a value, {lstm,gru,none}; --memory none"),
        ("CartPole-v1 --no-learning-rate", "there is no --no-learning-rate: --learning-rate needs a value, FLOAT"),
        ("CartPole-v1 --memory lsmt", "--memory: expected one of lstm, gru, none, found 'lsmt'. Did you mean lstm?"),
        ("CartPole-v1 --verbose 1", "there is no --verbose. What to use instead: progress=False in Python, --quiet"),
        ("CartPole-v1 --tensorboard_log x", "there is no --tensorboard-log. What to use instead: tensorboard=True"),
        ("CartPole-v1 --foo 3", "there is no --foo; similar: --"),
        (
            "--config sb3.yaml",
            "sb3.yaml, line 2: policy: there is no such setting. What to use instead: networks follow",
        ),
        ("CartPole-v1 -n 3", "there is no -n"),
        ("CartPole-v1 --num-envs", "--num-envs: expected one argument"),
        ("CartPole-v1 --num-envs eight", "--num-envs: expected a whole number or auto, found the text 'eight'"),
        ("CartPole-v1 --num-envs 0", "--num-envs=0: expected at least 1"),
        ("CartPole-v1 --gamma 1.5", "--gamma=1.5: expected a number from 0 to 1"),
        ("CartPole-v1 --executor proces", "Did you mean process?"),
        ("CartPole-v1 --normalize-rewards=3", "--normalize-rewards: ignored explicit argument"),
        ("CartPole-v1 --env-kwargs nothing", "is not JSON"),
        ("CartPole-v1 --seeds 0", "--seeds 0: must be greater than 0"),
        ("CartPole-v1 --seeds nan", "--seeds: expected a whole number, found 'nan'"),
        ("CartPole-v1 --seeds abc", "--seeds: expected a whole number, found 'abc'"),
        ("CartPole-v1 --seeds=", "--seeds: expected a whole number, found nothing"),
        ("CartPole-v1 --seeds 1000000000", "seeds=1000000000: expected 1 to 10,000"),
        ("CartPole-v1 --preset CartPol-v1", "Did you mean CartPole-v1?"),
        ("CartPole-v1 --preset CartPole-v1 --no-preset", "--no-preset and --preset CartPole-v1 cannot be used"),
        ("CartPole-v1 --init-from nowhere", "nowhere: there is no such directory"),
        ("--config nothing.yaml", "nothing.yaml: cannot be read"),
        (
            "--config typo.yaml",
            "typo.yaml, line 2: learning_rte: there is no such setting. Did you mean learning_rate?",
        ),
        ("--config nested.yaml", "nested.yaml, line 3: ppo.gama: there is no such setting. Did you mean gamma?"),
        ("--config text.yaml", "text.yaml, line 2: num_envs: expected a whole number"),
        ("--config inside.yaml", "line 3: ppo.num_envs: there is no such setting. It is a setting of the run"),
        ("--config synonym.yaml", "Did you mean learning_rate?"),
        ("--config empty.yaml", "empty.yaml, line 2: ppo: expected settings (name: value), found None"),
        ("--config twice.yaml", "twice.yaml, line 4: ppo.gamma: given twice, here and at twice.yaml, line 2"),
        ("--config both.yaml", "both.yaml, line 2: agent: this is the old name of algorithm, which is given too"),
        ("--config list.yaml", "list.yaml, line 2: algorithm: expected a name, found ['ppo']"),
        ("--config number.yaml", "number.yaml, line 1: env: expected a name, found 5"),
        ("CartPole-v1 --algorithm sac2", "there is no algorithm 'sac2'"),
        ("CartPole-v1 --evaluate-every -1", "--evaluate-every=-1: expected at least 0"),
        ("CartPole-v1 --seed 1e30", "--seed=1000000000000000019884624838656: expected a number from 0 to"),
        ("CartPole-v1 --learning-rate .inf", "--learning-rate=inf: expected a finite number"),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    typed: str, message: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in FILES.items():
        Path(name).write_text(text)
    assert main(["train", *typed.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and message in captured.err
    assert not Path("runs").exists()


def test_absent_device_is_refused(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = "mps" if torch.cuda.is_available() else "cuda"
    assert main(["train", "CartPole-v1", "--device", absent]) == 2
    assert f"device='{absent}'" in capsys.readouterr().err


WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, *more):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Absent())
from multiverse.cli.main import main

for typed in sys.argv[1:]:
    print(main(typed.split()), file=sys.stderr)
"""


def test_small_networks_train_without_torch_and_others_name_the_extra(tmp_path: Path) -> None:
    train = "train CartPole-v1 --env-steps 256"
    typed = [f"{train} --hidden-sizes 512", f"{train} --device cuda", f"{train} --run-dir small",
             "resume small --env-steps 512", "evaluate small --episodes 1"]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *typed], cwd=tmp_path, capture_output=True, text=True)
    wanted, said = "needs torch, not installed here: pip install 'multiverse[train]'", done.stderr.splitlines()
    assert [line for line in said if line.isdigit()] == ["2", "2", "0", "0", "0"], done.stderr
    assert len([line for line in said if wanted in line]) == 2


# -- runs --------------------------------------------------------------------------------------------------------
def test_train_prints_what_is_trained_the_result_and_next_commands(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in SMALL if word != "--no-preset"]
    assert main(["train", "CartPole-v1", *words, "--env-steps", "128", "--seed", "4"]) == 0
    out = capsys.readouterr().out
    (path,) = Path("runs/CartPole-v1").iterdir()
    assert path.name.startswith("ppo-4-")
    for reported in (
        "Training ppo on CartPole-v1: 2 envs, 128 env steps, seed 4.",
        "Settings: flags, then the preset for CartPole-v1",
        f"Run: {path}",
        "Envs: serial",
        "    128 env steps | evaluation: return ",
        "Done: 128 env steps, ",
        "Failures: none.",
        f"  multiverse evaluate {path}",
        f"  multiverse resume {path} --env-steps 256",
    ):
        assert reported in out
    assert json.loads((path / "summary.json").read_text())["env_steps"] == 128


def test_config_file_is_named_as_source_of_settings(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text("env: CartPole-v1\n")
    words = [word for word in SMALL if word != "--no-preset"]
    assert main(["train", "--config", "mine.yaml", *words, "--env-steps", "64"]) == 0
    message = "Settings: flags, then mine.yaml, then the preset for CartPole-v1 (`multiverse list presets`)."
    assert message in capsys.readouterr().out


def test_progress_line_is_printed_every_few_seconds(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter(range(10_000))
    begin = progress.ProgressLines.__init__
    monkeypatch.setattr(
        progress.ProgressLines,
        "__init__",
        lambda self, voice, about: begin(self, voice, now=lambda: float(next(times))),
    )
    assert train(Path("one"), "--episodes", "100000", env_steps=64 * 8) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " | restarts " in line]
    assert 2 <= len(lines) < 8  # checked once an update, and printed every third time
    shape = (
        r" +[\d,]+ env steps \(\d+ %, [\d,]+ of 100,000 episodes\) \| return [\d.]+, length \d+ \| "
        r"[\d,]+ env steps/s \| act \d+ %, step \d+ %, learn \d+ %, evaluate \d+ %, save \d+ %, other \d+ % \| "
        r"restarts 0 \| .+ left"
    )
    assert all(re.fullmatch(shape, line) for line in lines), lines


def test_num_envs_auto_decision_is_printed(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However fast they were here."""
    monkeypatch.setattr(scaling, "MEASURED_S", 0.0)
    assert train(Path("one"), "--num-envs", "auto", env_steps=64 * 16) == 0
    out = capsys.readouterr().out
    assert "num_envs chosen automatically" in out
    first = json.loads(Path("one", scaling.FILE).read_text().splitlines()[0])
    steps, count = first["env_steps"], first["num_envs"]
    assert first["tried"] == 8 and count in (4, 16)
    assert re.search(rf" +{steps:,} env steps \| {count} envs \(env steps/s by envs: 8: [\d,]+.*\)", out)


def test_seed_set_prints_each_return_and_their_iqm(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(Path("all"), "--seeds", "3", "--seed", "5", env_steps=64) == 0
    out = capsys.readouterr().out
    values = {}
    for seed in (5, 6, 7):
        summary = json.loads(Path("all", f"seed-{seed}", "summary.json").read_text())
        assert summary["seed"] == seed
        values[seed] = summary["evaluation"]["mean_return"]
        assert f"  {seed:>6}  {values[seed]:>10.1f}  all/seed-{seed}\n" in out
    assert f"IQM of 3 seeds: {interquartile_mean(list(values.values())):.1f} (95 % bootstrap interval " in out


def test_run_starts_with_the_weights_of_another(elsewhere: Path) -> None:
    assert train(Path("one"), env_steps=128) == 0
    assert train(Path("two"), "--init-from", "one", env_steps=64) == 0
    assert [checkpoint_of(name).state["session"]["algorithm"]["state"]["updates"] for name in ("one", "two")] == [2, 1]


def test_tensorboard_files_are_in_the_run_and_continue_on_resume(elsewhere: Path) -> None:
    assert train(Path("one"), "--tensorboard", env_steps=128) == 0
    assert main(["resume", "one", "--env-steps", "256"]) == 0
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator("one/tensorboard")
    events.Reload()
    assert [event.step for event in events.Scalars("train/episodes")] == [64, 128, 192, 256]  # no duplicates, no losses
    assert [event.step for event in events.Scalars("evaluation/mean_return")] == [128, 256]


# -- interrupts --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_interrupted_run_is_saved_and_prints_the_resume_command(
    number: signal.Signals,
    code: int,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(self: Any, status: Any) -> None:
        if status.clock.updates == 2:
            signal.raise_signal(number)

    monkeypatch.setattr(progress.ProgressLines, "_update", interrupted)
    assert train(Path("a run"), env_steps=640) == code
    assert capsys.readouterr().out.endswith("Interrupted at 128 env steps. To resume: multiverse resume 'a run'\n")
    summary = json.loads(Path("a run/summary.json").read_text())
    assert (summary["finished"], summary["env_steps"]) == (False, 128)
    assert checkpoint_of("a run").manifest["env_steps"] == 128


@pytest.mark.fault("F4")
def test_closed_output_pipe_does_not_end_the_run(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "multiverse.cli", "train", "CartPole-v1", "--run-dir", str(tmp_path / "one")]
    done = subprocess.run([*command, *SMALL, "--env-steps", "128"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["finished"]


# -- several seeds -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "mean"),
    [([1.0], 1.0), ([4.0, 2.0], 3.0), ([0.0, 10.0, 20.0, 990.0], 15.0), ([1, 2, 3, 4, 5, 6, 7, 800], 4.5)],
)
def test_interquartile_mean_uses_the_middle_half(values: list[float], mean: float) -> None:
    assert interquartile_mean(values) == pytest.approx(mean)


def test_values_at_the_edge_of_the_middle_half_are_weighted() -> None:
    assert interquartile_mean([0.0, 1.0, 2.0, 3.0, 100.0]) == pytest.approx((0.75 * 1 + 2 + 0.75 * 3) / 2.5)


def test_bootstrap_interval_contains_the_mean_and_is_narrow_for_equal_values() -> None:
    low, high = bootstrap_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert 1.0 <= low < 3.0 < high <= 5.0
    assert bootstrap_interval([7.0, 7.0, 7.0]) == (7.0, 7.0)


def test_extra_that_fails_to_import_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tensorboard.py").write_text("raise RuntimeError('Unable to open /dev/urandom')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tensorboard", raising=False)
    assert main(["train", "CartPole-v1", "--tensorboard"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "does not load here: RuntimeError: Unable to open /dev/urandom" in error


@pytest.mark.parametrize("executor", ["serial", "process", "thread"])
@pytest.mark.parametrize("how", ["--quiet", "--json"])
def test_output_of_envs_does_not_mix_with_results(how: str, executor: str, tmp_path: Path) -> None:
    """Standard output has only the run's directory, or JSON."""
    command = [sys.executable, "-m", "multiverse", "train", "tests.cli.loud_env:Loud", "--run-dir", str(tmp_path / "a")]
    words = [how, "--executor", executor, "--num-envs", "2", "--env-steps", "64", "--steps-per-env", "16"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=True)
    for said in ("imported", "reset", "native"):
        assert f"loud: {said}" in done.stderr
    if how == "--quiet":
        assert done.stdout == f"{tmp_path / 'a'}\n"
    else:
        events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
        assert (events[0], events[-1]) == ("start", "end")
