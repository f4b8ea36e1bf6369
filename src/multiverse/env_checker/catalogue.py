"""All findings about an env: severity, reason and remedy, in the words of docs/check_env.md."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from multiverse.env_checker.report import SEVERITIES, Finding, Severity


@dataclass(frozen=True, slots=True)
class Entry:
    """One kind of finding."""

    severity: Severity
    why: str
    remedy: str


def make_finding(code: str, evidence: str, severity: Severity | None = None) -> Finding:
    """Return a finding of the catalogue with its evidence; `severity` replaces that of the catalogue."""
    entry = CATALOGUE[code]
    return Finding(code, severity or entry.severity, evidence, entry.why, entry.remedy)


error, warning, info = (partial(Entry, severity) for severity in SEVERITIES)

CATALOGUE: dict[str, Entry] = {
    # -- crashes and hangs ---------------------------------------------------------------------------------------
    "hangs": error(
        "a vector env waits for its slowest env; one that never answers stops all of them until its timeout.",
        "look at the stack; set a time limit on the call that blocks (socket, lock, subprocess, while loop). If it is "
        "only slow, raise --timeout-s.",
    ),
    "cut-short": info(
        "the env is slow: the rest of this check was skipped.",
        "give it more time with --timeout-s: a check is stopped after half of it.",
    ),
    "crashes": error(
        "a crash in native code ends the whole process: with executor='serial', the training program.",
        "run the steps named here in a debugger (python -X faulthandler). Until then use executor='process' with "
        "on_failure='restart'.",
    ),
    # -- building ------------------------------------------------------------------------------------------------
    "build-failed": error(
        "nothing can run without an env.", "make the factory work on its own in a new interpreter first."
    ),
    "build-again-failed": error(
        "a worker holds many envs: the second copy in one process must work while the first one lives.",
        "give each instance its own port, file, window and lock (0 lets the system choose a port).",
    ),
    "same-env-again": error(
        "every copy would be the same object: each step of one is a step of all.",
        "build the env inside the function: lambda: MyEnv(), not env = MyEnv(); lambda: env.",
    ),
    "not-an-env": error(
        "make_vec takes gymnasium.Env and PettingZoo's AECEnv and ParallelEnv only.",
        "inherit from one of them; an old `gym` env needs a wrapper such as shimmy.GymV21CompatibilityV0.",
    ),
    "close-raises": error(
        "vector envs close every env at the end, in error handlers and at interpreter exit: an exception there hides "
        "the first cause and may leave processes and files behind.",
        "let close() release what exists and ignore the rest.",
    ),
    "close-twice": warning(
        "wrappers and error handlers may close an env twice.",
        "let a second close() do nothing, e.g. by setting released resources to None.",
    ),
    # -- spaces --------------------------------------------------------------------------------------------------
    "space-missing": error(
        "memory for the batch is laid out from the spaces, before the first step.",
        "set self.observation_space and self.action_space to gymnasium.spaces objects in __init__.",
    ),
    "space-bounds": error(
        "the range between these bounds is empty: sampling, clipping and scaling give meaningless values.",
        "correct low and high.",
    ),
    "spaces-differ": error(
        "all envs of one batch share its arrays; make_vec refuses copies whose spaces differ.",
        "make the spaces depend only on the constructor's arguments, not on chance or on envs built before.",
    ),
    "space-replaced": error(
        "the batch was laid out for the first space; values that no longer fit are an error during training.",
        "fix the space in __init__ at its largest and pad.",
    ),
    "action-space-sample": error(
        "exploration, warm-up and every check here draw actions from the space.",
        "correct the space: its own samples must be contained in it.",
    ),
    "action-unbounded": warning(
        "a policy scales its output to the bounds; with infinite ones SAC, TD3 and clipping do not work.",
        "give the Box finite bounds ([-1, 1] is usual) and scale inside step().",
    ),
    "image-space": warning(
        "learners take an image to be uint8 from 0 to 255 and divide by 255; floats also take 4 to 8 times the memory.",
        "use Box(0, 255, (height, width, channels), np.uint8), or flatten it if it is not an image.",
    ),
    "space-float64": info(
        "networks compute in float32: each batch is twice as large as needed and is cast at every step.",
        "declare dtype=np.float32 (and return it), unless the precision is needed.",
    ),
    "space-of-objects": info(
        "these values cannot be stored in an array: they are pickled and sent by pipe at every step instead of through"
        " shared memory.",
        "use fixed-size Box, Discrete, MultiDiscrete or MultiBinary (pad, with a mask) where speed matters.",
    ),
    # -- reset ---------------------------------------------------------------------------------------------------
    "reset-raises": error(
        "every episode begins with a reset.", "look at the line that raised; reproduce it with the seed named here."
    ),
    "reset-signature": error(
        "vector envs seed by env.reset(seed=..., options=...); without both the first seeded reset fails.",
        "def reset(self, *, seed=None, options=None): super().reset(seed=seed).",
    ),
    "reset-return": error(
        "the two values are unpacked at the start of every episode; anything else fails, or an array of two rows is "
        "mistaken for them.",
        "return observation, info (an empty dict if there are no infos).",
    ),
    "info-not-dict": error("infos of all envs are merged by key.", "return a dict, {} if it is empty."),
    # -- step ----------------------------------------------------------------------------------------------------
    "step-raises": error(
        "one env's exception stops the whole batch (or costs its episode with on_failure='restart').",
        "look at the line that raised; reproduce it with the seed and step named here.",
    ),
    "step-return": error(
        "five values are unpacked at every step.",
        "return observation, reward, terminated, truncated, info (the old `done` is split into the last two ends).",
    ),
    "reward-not-number": error(
        "rewards are summed and learned from as one float per env.",
        "return float(reward); a vector of rewards belongs into info.",
    ),
    "reward-array": error(
        "make_vec refuses it: an array with dimensions is not a number; other loops batch it to a wrong shape.",
        "return float(reward).",
    ),
    "reward-not-finite": error(
        "one NaN or infinity in a batch makes the loss and then all weights NaN.",
        "find the division, log or overflow; clip or end the episode before it happens.",
    ),
    "end-not-bool": error(
        "terminated and truncated decide where values are bootstrapped; any other value decides arbitrarily.",
        "return bool(...) of one condition.",
    ),
    "end-not-bool-like": warning(
        "it is converted to true or false here; other loops use it as a number or an index.", "return bool(...)."
    ),
    "never-ends": info(
        "without an end, no returns can be logged, and learners that wait for whole episodes wait forever.",
        "if this is not intended: gymnasium.wrappers.TimeLimit, or max_episode_steps= when registering.",
    ),
    "time-limit-as-terminated": warning(
        "`terminated` means that no reward follows: values are not bootstrapped there, and the agent learns that "
        "surviving is worthless.",
        "if a time limit ends the episode, return truncated=True (or leave it to TimeLimit); ignore this if the task "
        "itself always takes that many steps.",
    ),
    "step-before-reset": info(
        "a forgotten reset goes unnoticed, and the first episode starts from the state that __init__ left.",
        "raise in step() before the first reset; gymnasium.make's OrderEnforcing does that.",
    ),
    "step-after-end": info(
        "without autoreset, a forgotten reset goes unnoticed: the ended episode continues.",
        "raise, or keep returning terminated=True, until reset() is called.",
    ),
    # -- observations --------------------------------------------------------------------------------------------
    "observation-keys": error(
        "every key of the space is a column of the batch; a missing key leaves it without a value.",
        "always return exactly the keys of observation_space; add the missing key, or remove it from the space.",
    ),
    "observation-keys-extra": warning(
        "keys that are not in the space are dropped: no policy ever sees them.", "add it to the space, or to info."
    ),
    "observation-type": warning(
        "it is converted to an array at every step, with the type that numpy infers.",
        "return a numpy array of the space's dtype.",
    ),
    "observation-shape": error(
        "a row of the batch has the space's shape: other vector envs silently broadcast a smaller observation into it.",
        "make space and observation agree.",
    ),
    "observation-dtype": error(
        "values would be truncated or wrap around when they are stored in the batch.",
        "return the space's dtype: np.asarray(observation, dtype=self.observation_space.dtype).",
    ),
    "observation-dtype-cast": warning(
        "it is cast at every step and loses digits; SB3's checker refuses it.",
        "return the space's dtype: observation.astype(np.float32).",
    ),
    "observation-not-finite": error(
        "one NaN or infinity in a batch makes the loss and then all weights NaN.",
        "find the division, root, log or overflow (also 1e300 in float32); end the episode before it happens.",
    ),
    "observation-out-of-bounds": warning(
        "learners that scale by the bounds (images, normalisation) get values outside [0, 1]; many well-known envs "
        "leave their boxes, so this is counted, not refused.",
        "widen the Box, or clip.",
    ),
    "observation-not-in-space": error(
        "one-hot encodings and embeddings use it as an index: a value out of range is an error there, or selects "
        "another state's row.",
        "make space and observation agree.",
    ),
    # -- several agents ------------------------------------------------------------------------------------------
    "possible-agents": error(
        "every agent has its own row in the batch, fixed for the life of a vector env.",
        "set possible_agents to all agents that can ever exist, or pass make_vec(..., "
        "agents=AgentOptions(possible_agents=[...])).",
    ),
    "agent-unknown": error(
        "the batch has neither a row nor a space for it.",
        "list it in possible_agents, or omit it from the results of reset() and step().",
    ),
    "agent-missing": error(
        "make_vec refuses it: the observation or reward of a present agent would be missing from its row.",
        "return observation, reward, terminated and truncated for every agent in agents; remove agents that leave from"
        " agents.",
    ),
    "agent-space-new": warning(
        "seeding an agent's space has no effect if the next call returns another object: sampled actions are not "
        "reproducible.",
        "create the spaces once in __init__, and let observation_space(agent) and action_space(agent) look them up.",
    ),
    "ended-agent-stays": warning(
        "make_vec treats it as absent; loops that read agents continue to give it actions.",
        "remove agents that terminated or were truncated from agents in the same step.",
    ),
    "action-mask": error(
        "a policy that uses the mask cannot act, or takes an action that is not open.",
        "return a mask of 0 and 1, one entry per action, with at least one open action for an agent that acts.",
    ),
    "agents-change": info(
        "rows of absent agents are masked: alive marks the present ones, and learners omit the others.",
        "nothing, if it is intended.",
    ),
    "rewards-cancel": info(
        "one agent's gain is another's loss: a policy that plays all of them learns nothing from the sum.",
        "train by self-play (--opponents 5) or with one learner per agent (--separate), not with flatten_agents.",
    ),
    "not-checked": info("the behaviour differs between envs.", "nothing; the vector envs of make_vec never do this."),
    # -- ownership of arrays -------------------------------------------------------------------------------------
    "observation-reused": warning(
        "code that keeps observations (replay buffer, frame stack, final observation) ends up with many copies of the "
        "last one. make_vec copies each at once; other loops do not.",
        "return self._buffer.copy().",
    ),
    "observation-is-state": warning(
        "code that normalizes the observation in place (obs -= mean) changes the env's state. make_vec copies; other "
        "loops do not.",
        "return a copy of the state, not the state.",
    ),
    "info-reused": warning(
        "the final info of an episode shows the values of the next one, and entries that a wrapper adds once stay "
        "forever.",
        "build a new dict at every reset and step; copy the arrays in it.",
    ),
    "action-changed": warning(
        "the array belongs to the caller: other loops learn from the changed action, not from the chosen one. make_vec"
        " passes copies.",
        "action = np.clip(action, low, high) instead of action.clip(..., out=action), *= and the like.",
    ),
    "action-kept": warning(
        "the caller may reuse the array for the next action, which changes the array that the env kept. make_vec "
        "passes copies.",
        "keep action.copy().",
    ),
    # -- seeds ---------------------------------------------------------------------------------------------------
    "seed-ignored": error(
        "no run can be repeated, no failure reproduced, no episode replayed; parallel copies cannot be distinguished "
        "by their seeds.",
        "call super().reset(seed=seed) and draw all random numbers from self.np_random; do not use the time, unseeded "
        "generators or the order of sets.",
    ),
    "global-rng": error(
        "all envs of a process, and the learner, draw from one stream: results depend on how many envs share a worker,"
        " and reset(seed=) of one env affects all others.",
        "replace np.random.* and random.* by self.np_random (after super().reset(seed=seed)).",
    ),
    "global-rng-touched": warning(
        "the generator belongs to the program: the program's random numbers change with the number of envs in the "
        "process.",
        "replace np.random.* and random.* by self.np_random.",
    ),
    "state-leaks": warning(
        "an episode cannot be replayed from its seed and actions: resuming a run and reproducing a failure give "
        "another episode.",
        "set every attribute that step() changes in reset(), physics solvers and cached previous actions included. "
        "Wrappers with running statistics (NormalizeObservation) leak by design: normalize in the learner instead.",
    ),
    "infos-differ": warning(
        "logged values cannot be repeated, and comparing two runs bit for bit fails.",
        "omit clocks, ids and paths from info, or ignore this if they are intended.",
    ),
    "seeds-alike": warning(
        "copies with seeds 0, 1, 2... all play the same episode: the batch is one env repeated.",
        "pass the seed on: super().reset(seed=seed), not a constant.",
    ),
    "episodes-repeat": warning(
        "vector envs seed once and then call reset() without a seed: every later episode repeats the first one.",
        "seed only if a seed is given (seed=None must be the default and must not touch the generator).",
    ),
    "seed-default": warning(
        "vector envs seed once and then call reset() without a seed: every later episode begins with this seed.",
        "def reset(self, *, seed=None, options=None), and seed only if a seed is given.",
    ),
    "no-randomness": info(
        "parallel copies differ only by their actions.",
        "nothing, if it is intended; otherwise check that reset() passes its seed to super().reset(seed=seed).",
    ),
    "nondeterministic": info(
        "its spec has nondeterministic=True, so seeds are not expected to determine it.", "nothing."
    ),
    # -- several environments in one process ---------------------------------------------------------------------
    "instances-share-state": error(
        "a worker steps many envs in turn: each changes the episodes of the others.",
        "move class attributes, module globals, mutable default arguments and singletons into the instance.",
    ),
    "environment-changed": warning(
        "environment variables and the working directory belong to the process: other envs and the program see the "
        "change.",
        "pass paths and settings as arguments; use absolute paths instead of os.chdir.",
    ),
    "process-settings-changed": warning(
        "they belong to the process: Ctrl-C or floating-point errors now behave differently in the whole program.",
        "use np.errstate as a context manager, and do not install signal handlers.",
    ),
    # -- serialization -------------------------------------------------------------------------------------------
    "factory-cannot-travel": warning(
        "executor='process' and 'hybrid' refuse it (start_method='fork' and threads still work), and 'auto' stays "
        "serial.",
        "build what cannot be pickled (locks, sockets, open files, generators) inside the factory.",
    ),
    "info-cannot-travel": warning(
        "a worker process pickles infos; objects that cannot be pickled are replaced by their repr.",
        "put numbers, strings and arrays into info.",
    ),
    "env-cannot-be-pickled": info(
        "only checkpoints of the env object itself need this; make_vec does not.", "usually nothing."
    ),
    "checked-as-instance": info(
        "parallel copies are built by a function, and some checks need to build a new env.",
        "pass the class or a function: check_env(lambda: MyEnv(...)).",
    ),
    "not-isolated": info(
        "this platform has no worker processes: a crash or hang would affect this program.", "nothing."
    ),
    # -- leaks ---------------------------------------------------------------------------------------------------
    "threads-left": warning(
        "each restarted env leaves another thread; a program with running threads may not end.",
        "stop and join them in close().",
    ),
    "processes-left": warning(
        "they continue to use cores and memory; those of a worker are killed with it, those of the caller (serial, "
        "hybrid) are not.",
        "end and wait for them in close().",
    ),
    "descriptors-left": warning(
        "the limit of open files and sockets (ulimit -n, usually 1024) is reached after enough restarts.",
        "close them in close().",
    ),
    "memory-grows": warning(
        "after hours of training, a worker is killed for lack of memory.",
        "look for lists that grow with every reset or step, and for figures, surfaces and models that are not freed.",
    ),
    # -- cost ----------------------------------------------------------------------------------------------------
    "cost": info(
        "steps that cost less than the communication with a worker should stay in one process, others should be spread"
        " over the cores.",
        "executor='auto' decides by the same rules; `multiverse bench` measures.",
    ),
    "reset-dominates": info(
        "in lock-step, all envs wait for the one that resets.",
        "use send() and receive(min_envs=...), or make reset cheaper (load models once, in __init__).",
    ),
}
