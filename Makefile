# Every target sets up what it needs: `make run` or `make test` is all a fresh
# clone asks for. `PYTHON=/path/to/python3.13 make test` picks an interpreter.

VENV := .venv
PY := $(VENV)/bin/python
ARGS ?=
SEEDS ?= 3
# The users that `make run` trains on, and the settings for them.
USERS := data/stackexchange
SAMPLE := data_prep/samples/stackexchange
SETTINGS := scripts/presets/stackexchange

.DEFAULT_GOAL := help
.PHONY: help setup run check test lint format notebooks docs lock clean

help:  ## Show this list.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

setup:  ## Find Python 3.11 to 3.13, create .venv, install the lock (only when it changed).
	@sh tools/setup_env.sh $(VENV)

run: setup  ## Compare cold start, warm start and PDA-DPMD. SEEDS=5 has more seeds, ENGINE=tff runs TFF.
	@test -e $(USERS) || $(PY) -m scripts.prepare_users --output_dir=$(USERS) \
	  --source=jsonl:$(SAMPLE)/users.jsonl.xz \
	  --public_user_ids=$(SAMPLE)/public_users.txt \
	  --max_sentences=64 --vocabulary_size=2000
	@$(PY) -m scripts.compare --seeds=$(SEEDS) --num_processes=2 \
	  --output_dir=out/stackexchange$(addprefix -,$(ENGINE)) \
	  --chosen=$(SETTINGS).json -- --data_dir=$(USERS) \
	  --flagfile=$(SETTINGS).flags $(addprefix --engine=,$(ENGINE)) $(ARGS)

lint: setup  ## Check style with ruff and types with mypy.
	@$(PY) -m ruff check --quiet . && $(PY) -m ruff format --check .
	@$(PY) -m mypy

format: setup  ## Let ruff mend style and order of imports.
	@$(PY) -m ruff check --quiet --fix . ; $(PY) -m ruff format --quiet .

check: lint  ## Run ruff, mypy and the tests of what changed. BASE=main: since that commit.
	@$(PY) tools/check.py $(BASE)

test: lint  ## Run ruff, mypy and all tests on all cores. ARGS="-k runtime" selects.
	@$(PY) -m pytest -n auto $(ARGS)

notebooks: setup  ## Run the tutorials and keep what they print and draw.
	@$(PY) tools/run_notebooks.py

docs: setup  ## Write docs/api.md anew, from the docstrings.
	@$(PY) tools/write_api.py

lock:  ## Resolve requirements.in + overrides.txt into requirements.txt. ARGS=--upgrade.
	@sh tools/lock.sh $(ARGS)

clean:  ## Remove .venv and everything that was generated.
	@rm -rf $(VENV) $(VENV).lock $(VENV)-install.log build dist *.egg-info \
	  .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
