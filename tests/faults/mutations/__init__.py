"""Every guard by name: its text in the source, the text without it, and the tests that must notice."""

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
