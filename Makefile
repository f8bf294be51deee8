# Every target sets up what it needs in .venv; `make lab` and `make test` are all there is to know.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
export OMP_WAIT_POLICY ?= PASSIVE
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: lab test test-all check format clean

lab: $(VENV)/.lab  ## GRPO on the embedded model with live support metrics, a few minutes on a CPU
	$(BIN)/accelerate launch --quiet --config_file recipes/accelerate/one_process.yaml -m offleash.train --config recipes/lab.yaml --resume

test: $(VENV)/.test  ## the quick tests
	$(BIN)/python -m pytest

test-all: $(VENV)/.test  ## the quick tests and the slow ones
	$(BIN)/python -m pytest -m "slow or not slow"

check: $(VENV)/.test  ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/types/offleash && ln -sfn $(addprefix $(CURDIR)/,train eval callbacks recipes) build/types/offleash/
	MYPYPATH=build/types $(BIN)/mypy -p offleash.train -p offleash.eval -p offleash.callbacks

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.lab: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

$(VENV)/.test: $(VENV)/.lab
	$(PIP) --editable ".[test,check]"
	touch $@
