# `make demo` and `make test` do everything on a fresh machine with Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINE_VENV := .venv-engine
AGILERL_VENV := .venv-agilerl
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PIP_INSTALL_AGILERL := -m pip install --quiet --disable-pip-version-check --constraint constraints-agilerl.txt
ENV ?= CartPole-v1
# Some containers ask for no bytecode: hundreds of programs and workers of the suite would then compile us anew.
unexport PYTHONDONTWRITEBYTECODE
# The suite mostly waits for processes: on two cores, three at once. A file stays with one, for what its tests share.
AT_ONCE := --numprocesses 3 --dist loadfile

.PHONY: setup test test-all test-engine test-agilerl test-faults test-faults-mutations lint demo bench wheel clean

setup: $(VENV)/.installed

# torch first and by its exact version: it brings the CPU build, which the other packages then accept.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) torch==2.13.0
	$(BIN)/python $(PIP_INSTALL) --editable '.[dev,mujoco,pettingzoo,mpe,box2d,game-boy,train,tensorboard,tracking,plot,search,video,ray,peers]'
	touch $@

# The engine by itself, as somebody without torch installs it.
$(ENGINE_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ENGINE_VENV)
	$(ENGINE_VENV)/bin/python $(PIP_INSTALL) --editable . pytest hypothesis
	touch $@

# Beside AgileRL: itself without its dependencies, of which importing its vector envs needs only the first line's.
$(AGILERL_VENV)/.installed: pyproject.toml constraints-agilerl.txt
	$(PYTHON) -m venv $(AGILERL_VENV)
	$(AGILERL_VENV)/bin/python $(PIP_INSTALL_AGILERL) torch==2.13.0 tensordict accelerate lazy-loader
	$(AGILERL_VENV)/bin/python $(PIP_INSTALL_AGILERL) --editable '.[pettingzoo,mpe]' pytest
	$(AGILERL_VENV)/bin/python $(PIP_INSTALL_AGILERL) --no-deps agilerl
	touch $@

# What it needs and nothing else; where everything is installed, that.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) --editable '.[plot]'
	touch $@

demo: $(if $(wildcard $(VENV)/.installed),setup,$(VENV)/.demo)
	$(BIN)/multiverse demo

# Every test serially and with worker processes; `make test-all` runs every executor and start method.
test: setup lint
	$(BIN)/python -m pytest -q $(AT_ONCE) -p tests.selection \
		--ignore tests/interop/agilerl/test_same_as_agilerl.py --ignore tests/interop/agilerl/test_failures.py
	$(MAKE) test-engine
	$(MAKE) test-agilerl

test-all: setup lint
	$(BIN)/python -m pytest -q $(AT_ONCE)
	$(MAKE) test-engine
	$(MAKE) test-agilerl

test-engine: $(ENGINE_VENV)/.installed
	$(ENGINE_VENV)/bin/python -c "import importlib.util as u; assert u.find_spec('torch') is None"
	$(ENGINE_VENV)/bin/python -m pytest -q -p tests.selection tests/core tests/ipc tests/executors \
		tests/adapters tests/vector/test_partial.py --ignore tests/executors/test_ray.py

# The AgileRL drop-in beside the original, and that the benchmark runs beside it.
test-agilerl: $(AGILERL_VENV)/.installed
	$(AGILERL_VENV)/bin/python -m pytest -q tests/interop/agilerl tests/benchmarks/test_multi_agent.py

# Every promise of docs/failure_promises.md, with every executor and start method.
test-faults: setup
	$(BIN)/python -m pytest -q -p tests.faults.selection -m fault

# Each guard behind those promises switched off in a copy of the source: its tests must fail then. GUARD=name for one.
test-faults-mutations: setup
	$(BIN)/python -m tests.faults.mutations $(GUARD)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src

bench: setup
	$(BIN)/multiverse bench $(ENV)

# dist/multiverse-….whl: `pip install` it elsewhere, with extras as in docs/install.md.
wheel:
	$(PYTHON) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

include examples/game_boy/train.mk

clean:
	rm -rf dist $(VENV) $(ENGINE_VENV) $(AGILERL_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
