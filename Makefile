# Two commands are enough on a fresh machine: `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install train test lint format bench bench-peers results docs clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

train: install
	$(BIN)/vmpo train

test: lint
	$(BIN)/python -m pytest -m "not learning"
	$(BIN)/python -m pytest -m learning

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/vmpo bench all

bench-peers: install .peers/sb3/versions .peers/sample_factory/versions .peers/tianshou/versions .peers/rllib/versions
	$(BIN)/python -m benchmarks.peers

.peers/sb3/versions: PACKAGES := stable-baselines3 sb3-contrib
.peers/sample_factory/versions: PACKAGES := sample-factory
.peers/tianshou/versions: PACKAGES := tianshou
.peers/rllib/versions: PACKAGES := 'ray[rllib]==2.60.0'

# Each library in an environment of its own; one that cannot be installed is left out.
.peers/%/versions: constraints.txt
	$(PYTHON) -m venv --clear .peers/$*
	.peers/$*/bin/pip install --quiet $$(grep -E '^(torch|envpool)=' constraints.txt) $(PACKAGES) \
		&& .peers/$*/bin/pip freeze > $@ || { echo "$* cannot be installed"; rm -rf .peers/$*; }

results: install
	$(BIN)/python -m benchmarks.results draw

docs: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/mkdocs build

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
