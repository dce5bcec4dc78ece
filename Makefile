# Every target sets up what it needs: in a fresh clone, `make run` or `make
# test` is enough. `PYTHON=/path/to/python3.13 make test` chooses the
# interpreter.

VENV := .venv
PY := $(VENV)/bin/python
# The tools of the site have an environment of their own.
SITE_VENV := .venv-docs
ARGS ?=
SEEDS ?= 3
# Users and settings of `make run`.
USERS := data/stackexchange
SAMPLE := data_prep/samples/stackexchange
SETTINGS := scripts/presets/stackexchange

.DEFAULT_GOAL := help
.PHONY: help setup run check test lint format notebooks docs site lock clean

help:  ## Show this list.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

setup:  ## Create .venv with Python 3.11 to 3.13 and install the lock, if it changed.
	@sh tools/setup_env.sh $(VENV)

run: setup  ## Compare cold start, warm start and PDA-DPMD. Options: SEEDS=5, ENGINE=tff.
	@test -e $(USERS) || $(PY) -m scripts.prepare_users --output_dir=$(USERS) \
	  --source=jsonl:$(SAMPLE)/users.jsonl.xz \
	  --public_user_ids=$(SAMPLE)/public_users.txt \
	  --max_sentences=64 --vocabulary_size=2000
	@$(PY) -m scripts.compare --seeds=$(SEEDS) --num_processes=2 \
	  --output_dir=out/stackexchange$(addprefix -,$(ENGINE)) \
	  --chosen=$(SETTINGS).json --data_dir=$(USERS) \
	  --flagfile=$(SETTINGS).flags $(addprefix --engine=,$(ENGINE)) $(ARGS)

lint: setup  ## Check style with ruff and types with mypy.
	@$(PY) -m ruff check --quiet . && $(PY) -m ruff format --check .
	@$(PY) -m mypy

format: setup  ## Fix style and import order with ruff.
	@$(PY) -m ruff check --quiet --fix . ; $(PY) -m ruff format --quiet .

check: lint  ## Run ruff, mypy and the tests of what changed. BASE=main: since that commit.
	@$(PY) tools/check.py $(BASE)

test: lint  ## Run ruff, mypy and the tests. SLOW=1: all. ARGS="-k runtime": only these.
	@$(PY) -m pytest -n auto $(if $(SLOW)$(ARGS),,-m "not slow") $(ARGS)

notebooks: setup  ## Run the tutorials and save their outputs.
	@$(PY) tools/run_notebooks.py

docs: setup  ## Write docs/api.md and tables of other pages from the code and from results/.
	@$(PY) tools/write_api.py
	@$(PY) tools/write_tables.py

site: $(SITE_VENV)/installed  ## Build the documentation as a site, in build/site.
	@NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/python -m mkdocs build
	@echo "Open build/site/index.html. Search needs a server: python3 -m http.server -d build/site"

$(SITE_VENV)/installed: docs/requirements.txt
	@$${PYTHON:-python3} -m venv --clear $(SITE_VENV)
	@$(SITE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --only-binary :all: --require-hashes -r docs/requirements.txt
	@touch $@

lock:  ## Resolve requirements.in and overrides.txt, and the site's, into locks. ARGS=--upgrade.
	@sh tools/lock.sh $(ARGS)

clean:  ## Remove .venv and all generated files.
	@rm -rf $(VENV) $(VENV).lock $(VENV)-install.log $(SITE_VENV) build dist *.egg-info \
	  .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
