"""Every guard by name: the text in the source that is the guard, what stands there without it, and who must notice."""

from tests.faults.mutations import callers, causes, endings, hangs_and_deaths, ray, recovery, runs, training, values
from tests.faults.mutations.guard import Guard

GUARDS: tuple[Guard, ...] = (
    *hangs_and_deaths.GUARDS,
    *causes.GUARDS,
    *recovery.GUARDS,
    *endings.GUARDS,
    *values.GUARDS,
    *callers.GUARDS,
    *runs.GUARDS,
    *training.GUARDS,
    *ray.GUARDS,
)
