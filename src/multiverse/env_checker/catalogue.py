"""The findings that there can be about an env: how severe each is, why it matters, and what to change."""

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
    """Return a finding of the catalogue with its evidence; `severity` where this case differs from most."""
    entry = CATALOGUE[code]
    return Finding(code, severity or entry.severity, evidence, entry.why, entry.remedy)


error, warning, info = (partial(Entry, severity) for severity in SEVERITIES)

CATALOGUE: dict[str, Entry] = {
    # -- the worst ---------------------------------------------------------------------------------------------
    "hangs": error(
        "a vector env waits for its slowest env; one that never answers stops all of them until its timeout.",
        "look at the stack; give whatever is waited for (socket, lock, subprocess, while loop) a time limit. If it is "
        "only slow, raise --timeout-s.",
    ),
    "cut-short": info(
        "the env is slow: what this check would have looked at later was not looked at.",
        "give it more time with --timeout-s: a check is stopped after half of it.",
    ),
    "crashes": error(
        "native code that crashes ends its whole process: with executor='serial' that is the training program.",
        "run the steps named here in a debugger (python -X faulthandler). Until then use executor='process' with "
        "on_failure='restart'.",
    ),
    # -- building ----------------------------------------------------------------------------------------------
    "build-failed": error(
        "nothing can be run without an env.", "make the factory work by itself, in a fresh interpreter, first."
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
        "let close() release what is there and ignore what is not.",
    ),
    "close-twice": warning(
        "wrappers and error handlers close an env that is closed already.",
        "let a second close() do nothing, e.g. by setting what was released to None.",
    ),
    # -- spaces ------------------------------------------------------------------------------------------------
    "space-missing": error(
        "memory for the batch is laid out from the spaces, before the first step.",
        "set self.observation_space and self.action_space to gymnasium.spaces objects in __init__.",
    ),
    "space-bounds": error(
        "nothing lies between these bounds: sampling, clipping and scaling give nonsense.", "correct low and high."
    ),
    "spaces-differ": error(
        "all envs of one batch share its arrays; make_vec refuses copies whose spaces differ.",
        "make the spaces depend on the constructor's arguments only, never on chance or on what was built before.",
    ),
    "space-replaced": error(
        "the batch was laid out for the first space; what no longer fits it is an error in the middle of training.",
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
        "use Box(0, 255, (height, width, channels), np.uint8), or flatten it if it is no image.",
    ),
    "space-float64": info(
        "networks compute in float32: each batch is twice as large as needed and is cast at every step.",
        "declare dtype=np.float32 (and return it), unless the precision is needed.",
    ),
    "space-of-objects": info(
        "these values fit into no array: they are pickled and sent by pipe at every step instead of through shared "
        "memory.",
        "use fixed-size Box, Discrete, MultiDiscrete or MultiBinary (pad, with a mask) where speed matters.",
    ),
    # -- reset -------------------------------------------------------------------------------------------------
    "reset-raises": error(
        "every episode begins with a reset.", "see the line that raised; repeat it with the seed named here."
    ),
    "reset-signature": error(
        "vector envs seed by env.reset(seed=..., options=...); without both the first seeded reset fails.",
        "def reset(self, *, seed=None, options=None): super().reset(seed=seed); ...",
    ),
    "reset-return": error(
        "the two values are unpacked at every episode's start; anything else fails, or an array of two rows is taken "
        "for them.",
        "return observation, info (an empty dict if there is nothing to tell).",
    ),
    "info-not-dict": error("infos of all envs are merged by key.", "return a dict, {} if there is nothing."),
    # -- step --------------------------------------------------------------------------------------------------
    "step-raises": error(
        "one env's exception stops the whole batch (or costs its episode with on_failure='restart').",
        "see the line that raised; repeat it with the seed and step named here.",
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
        "make_vec refuses it: an array with dimensions is no number; other loops batch it to a wrong shape.",
        "return float(reward).",
    ),
    "reward-not-finite": error(
        "one NaN or infinity in a batch makes the loss and then all weights NaN.",
        "find the division, log or overflow; clip or end the episode before it happens.",
    ),
    "end-not-bool": error(
        "terminated and truncated decide where values are bootstrapped; what is no truth value decides at random.",
        "return bool(...) of one condition.",
    ),
    "end-not-bool-like": warning(
        "it is taken as true or false here; other loops use it as a number or an index.", "return bool(...)."
    ),
    "never-ends": info(
        "without an end there are no returns to log, and learners that wait for whole episodes wait for ever.",
        "if that is not meant: gymnasium.wrappers.TimeLimit, or max_episode_steps= when registering.",
    ),
    "time-limit-as-terminated": warning(
        "`terminated` says that nothing comes after: values are not bootstrapped there, and the agent learns that "
        "living on is worthless.",
        "if a clock ends the episode return truncated=True (or leave it to TimeLimit); ignore this if the task itself "
        "always takes that many steps.",
    ),
    "step-before-reset": info(
        "a forgotten reset goes unnoticed and the first episode starts from whatever __init__ left.",
        "raise in step() if there was no reset; gymnasium.make's OrderEnforcing does that.",
    ),
    "step-after-end": info(
        "with autoreset off a forgotten reset goes unnoticed: the ended episode simply continues.",
        "raise, or keep returning terminated=True, until reset() is called.",
    ),
    # -- observations ------------------------------------------------------------------------------------------
    "observation-keys": error(
        "every key of the space is a column of the batch; a missing one leaves no value to put there.",
        "return exactly the keys of observation_space, always; add what is missing, or take it out of the space.",
    ),
    "observation-keys-extra": warning(
        "what the space does not name is dropped: no policy ever sees it.", "add it to the space, or to info."
    ),
    "observation-type": warning(
        "it is converted to an array at every step, with whatever type numpy guesses.",
        "return a numpy array of the space's dtype.",
    ),
    "observation-shape": error(
        "a row of the batch has the space's shape: other vector envs broadcast a smaller one silently into it.",
        "make space and observation agree.",
    ),
    "observation-dtype": error(
        "values would be cut off or wrap round when they are put into the batch.",
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
        "leave their boxes, and it is counted, not refused.",
        "widen the Box, or clip.",
    ),
    "observation-not-in-space": error(
        "one-hot encodings and embeddings index with it: out of range is an error there, or another state's row.",
        "make space and observation agree.",
    ),
    # -- several agents ----------------------------------------------------------------------------------------
    "possible-agents": error(
        "every agent has a row of its own in the batch, fixed for the life of a vector env.",
        "set possible_agents to all agents that there can ever be, or pass make_vec(..., "
        "agents=AgentOptions(possible_agents=[...])).",
    ),
    "agent-unknown": error(
        "there is no row in the batch for it, and no space that says what it sees.",
        "list it in possible_agents, or leave it out of what reset() and step() return.",
    ),
    "agent-missing": error(
        "make_vec refuses it: what an agent that is there sees and earns would be missing from its row.",
        "return observation, reward and both ends of everybody in agents; whoever leaves is left out of agents.",
    ),
    "agent-space-new": warning(
        "seeding an agent's space does nothing if the next call returns another one: sampled actions do not repeat.",
        "make the spaces once in __init__, and let observation_space(agent) and action_space(agent) look them up.",
    ),
    "ended-agent-stays": warning(
        "make_vec takes it as gone; loops that ask agents go on giving it actions.",
        "take whoever has terminated or was truncated out of agents in the same step.",
    ),
    "action-mask": error(
        "a policy that follows the mask cannot act, or takes an action that is not open.",
        "give a mask of 0 and 1, one for every action, with at least one action open to whoever acts.",
    ),
    "agents-change": info(
        "rows of agents that are not there are masked: alive says who is, and learners leave the others out.",
        "nothing, if it is meant.",
    ),
    "rewards-cancel": info(
        "what one wins another loses: a policy that plays all of them has nothing to learn from the sum.",
        "train it by self-play (--opponents 5), or each agent by itself (--separate); not with flatten_agents.",
    ),
    "not-checked": info("it differs from env to env.", "nothing; the vector envs of make_vec do none of it."),
    # -- whose is it -------------------------------------------------------------------------------------------
    "observation-reused": warning(
        "whoever keeps the observation (replay buffer, frame stack, final observation) ends up with the last one many "
        "times. make_vec copies each at once; other loops do not.",
        "return self._buffer.copy().",
    ),
    "observation-is-state": warning(
        "somebody who normalises the observation in place (obs -= mean) moves the env. make_vec copies; others do not.",
        "return a copy of the state, not the state.",
    ),
    "info-reused": warning(
        "the final info of an episode shows the next one's values, and what a wrapper adds once stays for ever.",
        "build a new dict at every reset and step; copy the arrays in it.",
    ),
    "action-changed": warning(
        "the array is the caller's: other loops learn from the action as the env left it, not as it was chosen. "
        "make_vec hands out copies.",
        "action = np.clip(action, low, high) instead of action.clip(..., out=action), *= and the like.",
    ),
    "action-kept": warning(
        "the caller may use the array again for the next action: what the env kept then changes under it. make_vec "
        "hands out copies.",
        "keep action.copy().",
    ),
    # -- seeds -------------------------------------------------------------------------------------------------
    "seed-ignored": error(
        "no run can be repeated, no failure reproduced, no episode replayed; parallel copies cannot be told apart "
        "from their seeds.",
        "call super().reset(seed=seed) and draw everything from self.np_random; no time, no unseeded generators, no "
        "order of sets.",
    ),
    "global-rng": error(
        "all envs of a process, and the learner, draw from one stream: results depend on how many envs share a worker, "
        "and reset(seed=) of one env moves all others.",
        "replace np.random.* and random.* by self.np_random (after super().reset(seed=seed)).",
    ),
    "global-rng-touched": warning(
        "the generator belongs to the program: its own draws change with the number of envs in the process.",
        "replace np.random.* and random.* by self.np_random.",
    ),
    "state-leaks": warning(
        "an episode cannot be replayed from its seed and actions: resuming a run and reproducing a failure give "
        "another episode.",
        "set every attribute that step() changes in reset(), physics solvers and cached previous actions included. "
        "Wrappers with running statistics (NormalizeObservation) leak by design: normalise in the learner instead.",
    ),
    "infos-differ": warning(
        "logged values cannot be repeated, and comparing two runs bit for bit fails.",
        "leave clocks, ids and paths out of info, or ignore this if they are meant.",
    ),
    "seeds-alike": warning(
        "many copies with seeds 0, 1, 2... all play the same episode: the batch is one env, many times.",
        "pass the seed on: super().reset(seed=seed), not a constant.",
    ),
    "episodes-repeat": warning(
        "vector envs seed once and then call reset() without a seed: every later episode is the first one again.",
        "seed only if a seed is given (seed=None must be the default and leave the generator alone).",
    ),
    "seed-default": warning(
        "vector envs seed once and then call reset() without a seed: every later episode begins with this one.",
        "def reset(self, *, seed=None, options=None), and seed only if a seed is given.",
    ),
    "no-randomness": info(
        "parallel copies differ by their actions only.",
        "fine if it is meant; otherwise check that reset() passes its seed to super().reset(seed=seed).",
    ),
    "nondeterministic": info("its spec says nondeterministic=True, so seeds are not expected to fix it.", "nothing."),
    # -- several in one process --------------------------------------------------------------------------------
    "instances-share-state": error(
        "a worker steps many envs in turn: each changes the others' episodes.",
        "move class attributes, module globals, default arguments that are lists, and singletons into the instance.",
    ),
    "environment-changed": warning(
        "environment variables and the working directory belong to the process: other envs and the program see the "
        "change.",
        "pass paths and settings as arguments; use absolute paths instead of os.chdir.",
    ),
    "process-settings-changed": warning(
        "they belong to the process: Ctrl-C, or floating-point errors, now behave differently for everybody.",
        "use np.errstate as a context, and leave signal handlers alone.",
    ),
    # -- travelling --------------------------------------------------------------------------------------------
    "factory-cannot-travel": warning(
        "executor='process' and 'hybrid' refuse it (start_method='fork' and threads still work), and 'auto' stays "
        "serial.",
        "build what cannot be pickled (locks, sockets, open files, generators) inside the factory.",
    ),
    "info-cannot-travel": warning(
        "a worker process sends infos pickled; what cannot be is replaced by its repr.",
        "put numbers, strings and arrays into info.",
    ),
    "env-cannot-be-pickled": info(
        "only checkpoints of the env object itself need that; make_vec does not.", "nothing, usually."
    ),
    "checked-as-instance": info(
        "parallel copies are built by a function, and some checks need to build the env afresh.",
        "pass the class or a function: check_env(lambda: MyEnv(...)).",
    ),
    "not-isolated": info("there are no worker processes on this platform: a crash or hang would be ours.", "nothing."),
    # -- what stays --------------------------------------------------------------------------------------------
    "threads-left": warning(
        "each restarted or recycled env leaves one more; a program with running threads may not end.",
        "stop and join them in close().",
    ),
    "processes-left": warning(
        "they go on using cores and memory; a worker's are killed with it, the caller's own (serial, hybrid) are not.",
        "end and wait for them in close().",
    ),
    "descriptors-left": warning(
        "open files and sockets run out (ulimit -n, usually 1024) after enough restarts.", "close them in close()."
    ),
    "memory-grows": warning(
        "hours of training in many copies end in a worker killed for memory.",
        "look for lists that grow with every reset or step, and for figures, surfaces and models that are not freed.",
    ),
    # -- cost --------------------------------------------------------------------------------------------------
    "cost": info(
        "steps cheaper than handing them over are best left in one process, others spread over the cores.",
        "executor='auto' decides by the same rules; `multiverse bench` measures.",
    ),
    "reset-dominates": info(
        "in lock-step all envs wait for the one that resets.",
        "use send() and receive(min_envs=...), or make reset cheaper (load models once, in __init__).",
    ),
}
