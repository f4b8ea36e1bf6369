"""`multiverse bench ENV`: measure every executor beside the plain loop and the machine's limit."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from multiverse.cli.main import one_line, parsed_kwargs, print_wrapped, require_positive
from multiverse.cli.options import ENV_HELP, ENV_KWARGS_HELP, argument, option, parse
from multiverse.cli.output import BUSY_MACHINE, ResultConsole, percent, print_json, table_of
from multiverse.core.errors import InvalidRequest, MultiverseError
from multiverse.core.plan import ExecutorName
from multiverse.core.wording import pluralize

if TYPE_CHECKING:
    from multiverse.cli.comparison import Comparison, Parallelism, Result

    Results = dict[tuple[ExecutorName, int], Result | MultiverseError]

DESCRIPTION = """\
Measures the steps per second of an env with each executor, beside the plain
loop (one bare env) and the machine's limit (one bare loop per usable core).
Actions are random and drawn in advance. The time of resets is included, but
resets are not counted as steps. In a PettingZoo parallel env all agents act
in one step; in an AEC env a step is one agent's decision. Action masks are
respected. Each round measures everything in turn; ratios are computed within
a round, and the table shows medians over the rounds.

--parallelism adds a table that compares simulated parallelism (all envs in
one process) with true parallelism (several processes) for the first of
--num-envs: cost, speed, and which of the two to use.

examples:
  multiverse bench CartPole-v1
  multiverse bench BoxJump-v0 --num-envs 8 --parallelism
  multiverse bench Pendulum-v1 --num-envs 8 64 --env-kwargs '{"g": 9.8}'
  multiverse bench my_module:make_env --executors serial hybrid --json"""


@dataclass(frozen=True)
class Bench:
    """Options of `multiverse bench`."""

    env: str = argument("ENV", ENV_HELP)
    num_envs: tuple[int, ...] = option((8, 64), "Numbers of envs, measured one after another.")
    executors: tuple[ExecutorName, ...] = option(
        ("serial", "process", "hybrid", "thread", "auto"), "Executors to measure.", metavar="EXECUTOR"
    )
    workers: int | None = option(None, "Number of workers of each executor. Default: chosen from the usable cores.")
    seconds: float = option(1.0, "Duration of each measurement, in seconds.")
    rounds: int = option(3, "Number of rounds, each of which measures everything once.")
    parallelism: bool = option(False, "Also compare simulated with true parallelism.")
    env_kwargs: str = option("{}", ENV_KWARGS_HELP, metavar="JSON")
    json: bool = option(False, "Print one JSON object with the results of every round instead of a table.")


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
    """Return the name of each combination of executor and number of envs to measure; refuse invalid options."""
    if not options.num_envs or not options.executors:
        raise InvalidRequest("--num-envs and --executors need at least one value each")
    require_positive(rounds=options.rounds, seconds=options.seconds, workers=options.workers)
    for num_envs in options.num_envs:
        require_positive(num_envs=num_envs)
    return {(executor, n): _name(executor, n) for n in options.num_envs for executor in options.executors}


def _name(executor: str, num_envs: int) -> str:
    return f"{executor}, {pluralize(num_envs, 'env')}"


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
    ResultConsole().print(table)
    if comparison.machine_is_busy:
        print_wrapped(BUSY_MACHINE)
    for (executor, num_envs), result in results.items():
        if isinstance(result, MultiverseError):
            print_wrapped(f"{_name(executor, num_envs)}: {one_line(result)}")


def _print_parallelism(options: Bench, parallelism: Parallelism) -> None:
    title = f"{options.env}, {pluralize(options.num_envs[0], 'env')}"
    table = table_of(title, ("Feature", "Simulated Parallelism", "True Parallelism"), ())
    for row in parallelism.rows():
        table.add_row(*row)
    ResultConsole().print(table)
    print_wrapped(parallelism.advice())


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
