"""`multiverse bench ENV`: every executor beside the plain loop and the machine's limit."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from multiverse.cli.main import one_line, parse, parsed_kwargs, require_positive
from multiverse.cli.output import BUSY_MACHINE, ResultConsole, percent, print_json, table_of
from multiverse.core.errors import InvalidRequest, MultiverseError, counted
from multiverse.core.plan import ExecutorName

if TYPE_CHECKING:
    from multiverse.cli.comparison import Comparison, Result
    from multiverse.cli.parallelism import Parallelism

    Found = dict[tuple[ExecutorName, int], Result | MultiverseError]

Contender = tuple[ExecutorName, int]

DESCRIPTION = """\
Steps per second of an env under each executor, beside the plain loop (one
bare env) and the machine's limit (one bare loop per usable core). Actions are
random and drawn beforehand; resets take their time but are not counted as
steps. Of PettingZoo envs a step is one of the env (AEC: one agent's decision)
and actions are among those that masks leave open. Every round measures
everything in turn; ratios are taken within a round, and the table shows
medians over the rounds.

With --parallelism also the table of document 003: the first number of envs in
one process (serial) and in several (process), what each takes and gives, and
which to use.

examples:
  multiverse bench BoxJump-v0 --num-envs 8 --parallelism
  multiverse bench Pendulum-v1 --num-envs 8 64 --env-kwargs '{"g": 9.8}'
  multiverse bench my_module:make_env --executors serial hybrid --json"""


@dataclass(frozen=True)
class Bench:
    """Options of `multiverse bench`."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """A Gymnasium id, or module:name of something that builds an env, Gymnasium's or PettingZoo's."""
    num_envs: tuple[int, ...] = (8, 64)
    """How many envs; several numbers are measured one after another."""
    executors: tuple[ExecutorName, ...] = ("serial", "process", "hybrid", "thread", "auto")
    """Which executors."""
    workers: int | None = None
    """Threads or processes of each executor. Default: as many as the usable cores call for."""
    seconds: float = 1.0
    """How long each measurement takes."""
    rounds: int = 3
    """How often everything is measured."""
    parallelism: bool = False
    """Also simulated against true parallelism: cores, memory, speed, processes, GPUs and rendering."""
    env_kwargs: Annotated[str, tyro.conf.arg(metavar="JSON")] = "{}"
    """Arguments for the env, as a JSON object."""
    json: bool = False
    """Print one JSON object, with every round, instead of a table."""


def run(arguments: Sequence[str]) -> int:
    options = parse(Bench, "bench", DESCRIPTION, arguments)
    contenders = _contenders(options)
    comparison = _measure(options, contenders)
    found = {key: comparison.result(name) for key, name in contenders.items()}
    both = _both_sides(options) if options.parallelism else None
    if options.json:
        _print_json(options, comparison, found, both)
    else:
        _print_table(options, comparison, found)
        if both is not None:
            _print_parallelism(options, both)
    return int(bool(comparison.failures))


def _contenders(options: Bench) -> dict[Contender, str]:
    """What is to be measured, with the name it goes by; refuses what cannot be."""
    if not options.num_envs or not options.executors:
        raise InvalidRequest("--num-envs and --executors need at least one value each")
    require_positive(rounds=options.rounds, seconds=options.seconds, workers=options.workers)
    for num_envs in options.num_envs:
        require_positive(num_envs=num_envs)
    return {(executor, n): _name(executor, n) for n in options.num_envs for executor in options.executors}


def _name(executor: str, num_envs: int) -> str:
    return f"{executor}, {counted(num_envs, 'env')}"


def _measure(options: Bench, contenders: dict[Contender, str]) -> Comparison:
    import multiverse as mv
    from multiverse.adapters.env_source import recipes
    from multiverse.cli.comparison import compared
    from multiverse.executors.backends import backend_of
    from multiverse.measure import AnyVectorEnv

    kwargs = parsed_kwargs(options.env_kwargs)
    (recipe,) = recipes(options.env, 1, kwargs, None)

    def make(executor: ExecutorName, num_envs: int) -> AnyVectorEnv:
        workers = options.workers if executor == "auto" or backend_of(executor).workers else None
        return mv.make_vec(options.env, num_envs, executor, workers=workers, env_kwargs=kwargs)

    makers = {name: functools.partial(make, *key) for key, name in contenders.items()}
    return compared(recipe, makers, options.rounds, options.seconds)


def _both_sides(options: Bench) -> Parallelism:
    from multiverse.cli.parallelism import measured

    how = options.workers, parsed_kwargs(options.env_kwargs), options.rounds, options.seconds
    return measured(options.env, options.num_envs[0], *how)


def _print_json(options: Bench, comparison: Comparison, found: Found, both: Parallelism | None) -> None:
    print_json(
        {
            "env": options.env,
            "env_kwargs": parsed_kwargs(options.env_kwargs),
            "seconds": options.seconds,
            "rounds": options.rounds,
            "usable_cores": comparison.cores,
            "machine_is_busy": comparison.machine_is_busy,
            "plain_loop_steps_per_s": comparison.median(lambda one: one.plain_steps_per_s),
            "machine_limit_steps_per_s": comparison.median(lambda one: one.limit_steps_per_s),
            "plain_loop_by_round": [one.plain_steps_per_s for one in comparison.rounds],
            "machine_limit_by_round": [one.limit_steps_per_s for one in comparison.rounds],
            "results": [
                {"executor": executor, "num_envs": num_envs}
                | ({"failure": one_line(result)} if isinstance(result, MultiverseError) else asdict(result))
                for (executor, num_envs), result in found.items()
            ],
            **({} if both is None else {"parallelism": both.as_plain()}),
        }
    )


def _print_table(options: Bench, comparison: Comparison, found: Found) -> None:
    table = table_of(
        f"{options.env}: median of {options.rounds} × {options.seconds:g} s",
        ("executor",),
        ("envs", "steps/s", "of the\nlimit", "× plain\nloop", "start-up\nseconds", "MB per\nworker"),
    )
    plain, limit = (lambda one: one.plain_steps_per_s), (lambda one: one.limit_steps_per_s)
    share = comparison.median(lambda one: one.plain_steps_per_s / one.limit_steps_per_s)
    ratio = comparison.median(lambda one: one.limit_steps_per_s / one.plain_steps_per_s)
    table.add_row("plain loop", "1", f"{comparison.median(plain):,.0f}", percent(share), "1.00")
    limit_row = (
        "the machine's limit",
        str(comparison.cores),
        f"{comparison.median(limit):,.0f}",
        percent(1),
        f"{ratio:.2f}",
    )
    table.add_row(*limit_row, end_section=True)
    for (executor, num_envs), result in found.items():
        table.add_row(*_cells(executor, num_envs, result))
    console = ResultConsole()
    console.print(table)
    if comparison.machine_is_busy:
        console.print(BUSY_MACHINE, soft_wrap=True)
    for (executor, num_envs), result in found.items():
        if isinstance(result, MultiverseError):
            console.print(f"{_name(executor, num_envs)}: {one_line(result)}", markup=False, soft_wrap=True)


def _print_parallelism(options: Bench, both: Parallelism) -> None:
    count = _name("", options.num_envs[0]).removeprefix(", ")
    table = table_of(f"{options.env}, {count}", ("Feature", "Simulated Parallelism", "True Parallelism"), ())
    for row in both.rows():
        table.add_row(*row)
    console = ResultConsole()
    console.print(table)
    console.print(both.advice(), markup=False, soft_wrap=True)


def _cells(executor: str, num_envs: int, result: Result | MultiverseError) -> tuple[str, ...]:
    if isinstance(result, MultiverseError):
        return executor, str(num_envs), "failed"
    chosen = sorted({plan.executor for plan in result.plans})
    memory = result.mb_per_process
    return (
        f"{executor} ({', '.join(chosen)})" if executor == "auto" else executor,
        str(num_envs),
        f"{result.steps_per_s:,.0f}",
        percent(result.of_the_limit),
        f"{result.times_plain_loop:.2f}",
        f"{result.start_up_s:.2f}",
        "" if memory is None else f"{memory:.1f}",
    )
