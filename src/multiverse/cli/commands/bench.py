"""`multiverse bench ENV`: every executor beside the plain loop and the machine's limit."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from multiverse.cli.main import one_line, parse, parsed_kwargs, require_positive
from multiverse.cli.output import BUSY_MACHINE, ResultConsole, percent, print_json, table_of
from multiverse.core.errors import InvalidRequest, MultiverseError
from multiverse.core.plan import ExecutorName
from multiverse.core.wording import counted

if TYPE_CHECKING:
    from multiverse.cli.comparison import Comparison, Parallelism, Result

    Results = dict[tuple[ExecutorName, int], Result | MultiverseError]

DESCRIPTION = """\
Measures the steps per second of an env under each executor, beside the plain
loop (one bare env) and the machine's limit (one bare loop per usable core).
Actions are random and drawn beforehand; the time of resets is included, but
they are not counted as steps. A step of a PettingZoo env is one of the env
(AEC: one agent's decision), with actions that the masks allow. Every round
measures everything in turn; ratios are taken within a round, and the table
shows medians over the rounds.

--parallelism adds a table of the first number of envs in one process (serial,
simulated parallelism) and in several (process, true parallelism): what each
costs and yields, and which to use.

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
    """Number of envs; several numbers are measured one after another."""
    executors: tuple[ExecutorName, ...] = ("serial", "process", "hybrid", "thread", "auto")
    """Executors to measure."""
    workers: int | None = None
    """Number of threads or processes of each executor. Default: chosen by the number of usable cores."""
    seconds: float = 1.0
    """Duration of each measurement."""
    rounds: int = 3
    """Number of times that everything is measured."""
    parallelism: bool = False
    """Also compare simulated with true parallelism: cores, memory, speed, processes, GPUs and rendering."""
    env_kwargs: Annotated[str, tyro.conf.arg(metavar="JSON")] = "{}"
    """Arguments for the env, as a JSON object."""
    json: bool = False
    """Print one JSON object, with every round, instead of a table."""


def run(arguments: Sequence[str]) -> int:
    options = parse(Bench, "bench", DESCRIPTION, arguments)
    contenders = _contenders(options)
    kwargs = parsed_kwargs(options.env_kwargs)
    comparison = _measure(options, kwargs, contenders)
    results = {key: comparison.result(name) for key, name in contenders.items()}
    parallelism = None
    if options.parallelism:
        from multiverse.cli.comparison import measured_parallelism

        parallelism = measured_parallelism(
            env=options.env,
            num_envs=options.num_envs[0],
            workers=options.workers,
            kwargs=kwargs,
            rounds=options.rounds,
            seconds=options.seconds,
        )
    if options.json:
        _print_json(options, kwargs, comparison, results, parallelism)
    else:
        _print_table(options, comparison, results)
        if parallelism is not None:
            _print_parallelism(options, parallelism)
    return int(bool(comparison.failures))


def _contenders(options: Bench) -> dict[tuple[ExecutorName, int], str]:
    """Return what is to be measured, with its name; refuse what cannot be measured."""
    if not options.num_envs or not options.executors:
        raise InvalidRequest("--num-envs and --executors need at least one value each")
    require_positive(rounds=options.rounds, seconds=options.seconds, workers=options.workers)
    for num_envs in options.num_envs:
        require_positive(num_envs=num_envs)
    return {(executor, n): _name(executor, n) for n in options.num_envs for executor in options.executors}


def _name(executor: str, num_envs: int) -> str:
    return f"{executor}, {counted(num_envs, 'env')}"


def _measure(options: Bench, kwargs: dict[str, Any], contenders: dict[tuple[ExecutorName, int], str]) -> Comparison:
    import multiverse as mv
    from multiverse.adapters.env_source import recipes
    from multiverse.cli.comparison import compared
    from multiverse.executors.backends import backend_of
    from multiverse.measure import AnyVectorEnv

    (recipe,) = recipes(options.env, 1, kwargs, None)

    def make(executor: ExecutorName, num_envs: int) -> AnyVectorEnv:
        workers = options.workers if executor == "auto" or backend_of(executor).workers else None
        return mv.make_vec(options.env, num_envs, executor, workers=workers, env_kwargs=kwargs)

    makers = {name: functools.partial(make, *key) for key, name in contenders.items()}
    return compared(recipe, makers, options.rounds, options.seconds)


def _print_json(
    options: Bench, kwargs: dict[str, Any], comparison: Comparison, results: Results, parallelism: Parallelism | None
) -> None:
    print_json(
        {
            "env": options.env,
            "env_kwargs": kwargs,
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
                for (executor, num_envs), result in results.items()
            ],
            **({} if parallelism is None else {"parallelism": parallelism.as_plain()}),
        }
    )


def _print_table(options: Bench, comparison: Comparison, results: Results) -> None:
    table = table_of(
        f"{options.env}: median of {options.rounds} × {options.seconds:g} s",
        ("executor",),
        ("envs", "steps/s", "of the\nlimit", "× plain\nloop", "start-up\nseconds", "MB per\nworker"),
    )
    plain = comparison.median(lambda one: one.plain_steps_per_s)
    limit = comparison.median(lambda one: one.limit_steps_per_s)
    share = comparison.median(lambda one: one.plain_steps_per_s / one.limit_steps_per_s)
    ratio = f"{comparison.median(lambda one: one.limit_steps_per_s / one.plain_steps_per_s):.2f}"
    table.add_row("plain loop", "1", f"{plain:,.0f}", percent(share), "1.00")
    table.add_row("the machine's limit", str(comparison.cores), f"{limit:,.0f}", percent(1), ratio, end_section=True)
    for (executor, num_envs), result in results.items():
        table.add_row(*_cells(executor, num_envs, result))
    console = ResultConsole()
    console.print(table)
    if comparison.machine_is_busy:
        console.print(BUSY_MACHINE, soft_wrap=True)
    for (executor, num_envs), result in results.items():
        if isinstance(result, MultiverseError):
            console.print(f"{_name(executor, num_envs)}: {one_line(result)}", markup=False, soft_wrap=True)


def _print_parallelism(options: Bench, parallelism: Parallelism) -> None:
    title = f"{options.env}, {counted(options.num_envs[0], 'env')}"
    table = table_of(title, ("Feature", "Simulated Parallelism", "True Parallelism"), ())
    for row in parallelism.rows():
        table.add_row(*row)
    console = ResultConsole()
    console.print(table)
    console.print(parallelism.advice(), markup=False, soft_wrap=True)


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
