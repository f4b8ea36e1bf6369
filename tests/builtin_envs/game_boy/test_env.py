"""Observations, actions and rewards of the Game Boy env over several episodes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import multiverse as mv
from multiverse.envs.game_boy import GameBoyEnv
from tests.builtin_envs.game_boy.cartridge import GAME, written

WAIT, A, B, START, SELECT, UP, DOWN, LEFT, RIGHT = range(9)


def played(env: GameBoyEnv, actions: list[int], seed: int = 0) -> list[Any]:
    return [env.reset(seed=seed)[0], *(env.step(action) for action in actions)]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(np.array_equal(one, other))


@pytest.fixture
def env(cartridge: dict[str, str]) -> Any:
    env = GameBoyEnv(**cartridge, observation="ram")
    yield env
    env.close()


# -- observations ------------------------------------------------------------------------------------------------
def test_features_are_numbers_from_0_to_1_and_one_hot_vectors(env: GameBoyEnv) -> None:
    env.reset(seed=0)
    env.step(A)
    features, *_, info = env.step(RIGHT)
    x, y, gems, health, *room, random = features.tolist()
    assert (x, y, gems, health) == pytest.approx((info["x"] / 255, 0, info["gems"] / 20, 1.0))
    assert info["x"] in (4, 5) and info["gems"] in (4, 5)
    assert room == [1.0] + [0.0] * 15 and random == pytest.approx(info["random"] / 255)
    assert info["score"] == 256 + info["gems"], "two bytes, the lower one first"
    for _ in range(20):
        features, *_ = env.step(A)
    assert features[2] == 1.0, "beyond its max a feature stays in its space"


def test_screen_observations_are_grey_downscaled_and_stacked(cartridge: dict[str, str]) -> None:
    env = GameBoyEnv(**cartridge, stack=3, render_mode="rgb_array")
    first, _ = env.reset(seed=0)
    assert first.shape == (3, 72, 80) and (first == first[0]).all()
    second, *_ = env.step(RIGHT)
    assert (second[:2] == first[:2]).all() and (second[2] != first[2]).any()
    squares = env.render()[:, :, 0].reshape(72, 2, 80, 2)
    assert (second[2] == squares.mean(axis=(1, 3)).astype(np.uint8)).all()
    env.close()


@pytest.mark.parametrize(("downscale", "shape"), [(1, (1, 144, 160)), (4, (1, 36, 40)), (8, (1, 18, 20))])
def test_screen_is_downscaled_by_the_given_factor(
    downscale: int, shape: tuple[int, ...], cartridge: dict[str, str]
) -> None:
    env = GameBoyEnv(**cartridge, stack=1, downscale=downscale, render_mode="rgb_array")
    shown, _ = env.reset(seed=0)
    squares = env.render()[:, :, 0].reshape(144 // downscale, downscale, 160 // downscale, downscale)
    assert shown.shape == shape and (shown[0] == squares.mean(axis=(1, 3)).astype(np.uint8)).all()
    env.close()


def test_observation_both_equals_screen_and_ram_observations(cartridge: dict[str, str]) -> None:
    actions = [RIGHT, A, WAIT, LEFT] * 5
    shown = {}
    for observation in ("screen", "ram", "both"):
        env = GameBoyEnv(**cartridge, observation=observation)
        shown[observation] = [played(env, actions)[-1][0]]
        env.close()
    (both,) = shown["both"]
    assert equal(both, {"screen": shown["screen"][0], "ram": shown["ram"][0]})


# -- actions and episodes ----------------------------------------------------------------------------------------
def test_buttons_are_held_and_released_for_the_given_frames(cartridge: dict[str, str]) -> None:
    env = GameBoyEnv(**cartridge, observation="ram", hold_frames=3, release_frames=5)
    env.reset(seed=0)
    gems = [env.step(A)[-1]["gems"] for _ in range(4)]
    assert np.diff(gems).tolist() == [3, 3, 3], "pressed for three of eight frames"
    env.close()


def test_buttons_stay_pressed_without_release_frames(env: GameBoyEnv) -> None:
    env.reset(seed=0)
    env.step(RIGHT)
    moved = np.diff([env.step(RIGHT)[-1]["x"] for _ in range(3)]).tolist()
    env.step(A)
    stays = np.diff([env.step(A)[-1]["x"] for _ in range(3)]).tolist()
    assert (moved, stays) == ([4, 4], [0, 0])


def test_episode_starts_with_the_presses_of_the_game_file(tmp_path: Path) -> None:
    """The game has received `press: start`; a fixed start needs no draws."""
    game = GAME.replace("  - {wait: [4, 12]}\n", "")
    game = game.replace("ram:\n", "ram:\n  pressed: {address: 0xC011, bit: 3}\n")
    env = GameBoyEnv(**written(tmp_path, game), observation="ram")
    assert env.reset(seed=0)[1]["pressed"] == 1
    env.close()


def test_episodes_terminate_by_rule_and_are_truncated_by_length(cartridge: dict[str, str]) -> None:
    env = GameBoyEnv(**cartridge, observation="ram", episode_length=20)
    env.reset(seed=0)
    ends = [env.step(B)[2:4] for _ in range(3)]
    assert ends[-1] == (True, False) and ends[0] == (False, False)
    env.reset(seed=0)
    ends = [env.step(WAIT)[2:4] for _ in range(20)]
    assert ends[-1] == (False, True) and (False, True) not in ends[:-1]
    env.close()


def test_rewards_follow_the_rules_of_the_game_file(env: GameBoyEnv) -> None:
    env.reset(seed=0)
    before, total = env.reset(seed=0)[1], 0.0
    for action in [RIGHT] * 5 + [LEFT] * 7 + [A] * 2 + [B]:
        _, reward, _, _, info = env.step(action)
        total += reward
    # Rooms 1 and, to the left of the first, 15: going back pays nothing.
    lost = before["health"] - info["health"]
    assert info["room"] == 15 and total == pytest.approx(2 * 10 + 0.5 * info["gems"] - lost)
    assert info["success"] is (info["gems"] >= 5)


def test_seed_and_actions_determine_the_episode(cartridge: dict[str, str]) -> None:
    actions = np.random.default_rng(0).integers(0, 9, 60).tolist()
    one, other = GameBoyEnv(**cartridge, observation="both"), GameBoyEnv(**cartridge, observation="both")
    other.reset(seed=5)
    for action in actions:
        other.step(action)
    assert equal(played(one, actions, 3), played(other, actions, 3)), "what was played before makes no difference"
    assert not equal(played(one, actions, 3), played(other, actions, 4))
    one.close()
    other.close()


def test_invalid_calls_name_the_mistake(env: GameBoyEnv) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=r"reset\(\) first"):
        env.step(0)
    env.reset()
    with pytest.raises(mv.errors.InvalidRequest, match="action=9: expected 0 to 8"):
        env.step(9)
    with pytest.raises(mv.errors.InvalidRequest, match="options: level is not known"):
        env.reset(options={"level": 3})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episode_length": 0}, "episode_length=0: expected a whole number of at least 1"),
        ({"hold_frames": 2.5}, "hold_frames=2.5: expected a whole number"),
        ({"observation": "sound"}, "observation='sound': expected one of screen, ram, both"),
        ({"downscale": 3}, "downscale=3: expected one of 1, 2, 4, 8"),
        ({"render_mode": "human"}, "render_mode='human': expected one of None, rgb_array"),
        ({"starts": []}, "at least one"),
        ({"game": None, "observation": "ram"}, "has no features in `ram`"),
    ],
)
def test_invalid_arguments_are_named(arguments: dict[str, Any], message: str, cartridge: dict[str, str]) -> None:
    with pytest.raises(mv.errors.InvalidRequest, match=message):
        GameBoyEnv(**{**cartridge, **arguments})


def test_cartridge_without_a_game_file_can_be_played(cartridge: dict[str, str]) -> None:
    env = GameBoyEnv(cartridge["rom"], episode_length=3)
    env.reset(seed=0)
    assert [env.step(RIGHT)[1:] for _ in range(3)] == [(0.0, False, last, {}) for last in (False, False, True)]
    env.close()


# -- starting points and coming back -----------------------------------------------------------------------------
def test_episodes_start_at_one_of_several_saved_states(cartridge: dict[str, str], tmp_path: Path) -> None:
    env = GameBoyEnv(**cartridge, observation="ram")
    for name, steps in [("near", 5), ("far", 25)]:
        played(env, [RIGHT] * steps)
        env.save_start(tmp_path / name)
    env.close()
    game = Path(cartridge["game"]).read_text() + f"starts: {{near: near, far: {tmp_path / 'far'}}}\n"
    (tmp_path / "with_starts.yaml").write_text(game)
    arguments = {**cartridge, "game": tmp_path / "with_starts.yaml"}
    env = GameBoyEnv(**arguments, observation="ram", starts=["power_on", "near", "far", str(tmp_path / "far")])
    seeds = range(24)
    rooms = [env.reset(seed=seed)[1]["room"] for seed in seeds]
    assert set(rooms) == {0, 1, 6} and rooms == [env.reset(seed=seed)[1]["room"] for seed in seeds]
    _, info = env.reset(seed=0, options={"start": "near"})
    assert info["room"] == 1
    assert env.step(WAIT)[-1]["x"] == info["x"], "the button that was down when it was saved is not down any more"
    with pytest.raises(
        mv.errors.InvalidRequest, match=r"start 'moon': moon: No such file.*expected one of power_on, near, far"
    ):
        env.reset(options={"start": "moon"})
    with pytest.raises(mv.errors.InvalidRequest, match="is not a state of this game"):
        env.reset(options={"start": str(tmp_path / "with_starts.yaml")})
    env.close()


def test_advise_selects_starts_scales_rewards_and_is_saved(cartridge: dict[str, str], tmp_path: Path) -> None:
    env = GameBoyEnv(**cartridge, observation="ram")
    played(env, [RIGHT] * 25)
    env.save_start(tmp_path / "far")
    env.reset(seed=0)
    x = env.step(RIGHT)[-1]["x"]
    env.advise(starts=[str(tmp_path / "far")], rewards={"gems": 0.0, "room": 2.0})
    assert env.step(RIGHT)[-1]["x"] == x + 4, "the game continues where it was"
    assert env.step(A)[1] == 0.0 and sum(env.step(RIGHT)[1] for _ in range(3)) == 20.0
    state = env.save_state()
    env.close()
    other = GameBoyEnv(**cartridge, observation="ram")
    other.restore_state(state)
    assert other.step(A)[1] == 0.0 and other.reset(seed=1)[1]["room"] == 6
    assert other.advisable()["rewards"] == ["gems", "health", "room"] and "power_on" in other.advisable()["starts"]
    other.close()


@pytest.mark.parametrize("observation", ["ram", "both"])
def test_restored_state_continues_exactly(observation: Any, cartridge: dict[str, str]) -> None:
    """In the same env and in a new one: screens, rewards that are paid once, the length, and the next episode."""
    before, after = [RIGHT] * 12 + [A], [LEFT, A, B, RIGHT, RIGHT, B] * 4
    env = GameBoyEnv(**cartridge, observation=observation, episode_length=40)
    played(env, before, seed=7)
    state = env.save_state()
    expected = [env.step(action) for action in after] + [env.reset()]
    other = GameBoyEnv(**cartridge, observation=observation, episode_length=40)
    other.reset(seed=1)
    for one in (env, other):
        one.restore_state(state)
        assert equal([one.step(action) for action in after] + [one.reset()], expected)
        one.close()


# -- many of them ------------------------------------------------------------------------------------------------
def test_check_env_reports_only_expected_findings(cartridge: dict[str, str]) -> None:
    report = mv.check_env(GameBoyEnv, env_kwargs={**cartridge, "observation": "both", "episode_length": 40})
    assert {finding.code for finding in report.findings} <= {"env-cannot-be-pickled", "cost", "reset-dominates"}


def test_thirty_two_envs_in_one_process_load_no_video_and_open_no_window(cartridge: dict[str, str]) -> None:
    """In a separate process, because loaded libraries and output belong to a process."""
    program = f"""
import sys
from pathlib import Path
from multiverse.envs.game_boy import GameBoyEnv
envs = [GameBoyEnv(**{cartridge!r}, observation="ram") for _ in range(32)]
for seed, env in enumerate(envs):
    env.reset(seed=seed)
for k in range(20):
    xs = [env.step(8 if seed % 2 else 7)[-1]["x"] for seed, env in enumerate(envs)]
assert len(set(xs)) > 1
import sdl2
print("video", sdl2.SDL_WasInit(0), "windows", sum(bool(sdl2.SDL_GetWindowFromID(i)) for i in range(64)))
for env in envs:
    env.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("video 0 windows 0\n", "")


def test_missing_pyboy_is_reported_with_the_install_command() -> None:
    program = "import sys; sys.modules['pyboy'] = None; import multiverse.envs.game_boy"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "ImportError: a Game Boy needs PyBoy" in done.stderr and "multiverse[game-boy]" in done.stderr


def test_files_beside_the_cartridge_are_neither_written_nor_read(tmp_path: Path) -> None:
    """The cartridge has a battery, whose memory PyBoy would save."""
    arguments = written(tmp_path)
    image = bytearray(Path(arguments["rom"]).read_bytes())
    image[0x147], image[0x149] = 0x03, 0x02  # with RAM and a battery
    image[0x14D] = -sum(byte + 1 for byte in image[0x134:0x14D]) & 0xFF
    Path(arguments["rom"]).write_bytes(image)
    Path(arguments["rom"] + ".ram").write_bytes(b"broken")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    env = GameBoyEnv(**arguments)
    played(env, [A] * 3)
    env.close()
    del env
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_closed_envs_release_their_memory(cartridge: dict[str, str]) -> None:
    def opened(count: int) -> int:
        for _ in range(count):
            env = GameBoyEnv(**cartridge)
            env.reset(seed=0)
            env.close()
        return psutil.Process().memory_info().rss

    before = opened(10)  # an emulator has over 1 MB
    assert opened(40) - before < 20 << 20, "40 that are closed keep less than half of what they had"


def test_resets_do_not_grow_memory(cartridge: dict[str, str]) -> None:
    env = GameBoyEnv(**cartridge)

    def reset(count: int) -> int:
        for seed in range(count):
            env.reset(seed=seed)
        return psutil.Process().memory_info().rss

    before = reset(100)
    assert reset(400) - before < 4 << 20, "a state that a reset loads has over 100 kB"
    env.close()
