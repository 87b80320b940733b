# Everything here builds its own environment: Python 3.11 and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check

# Test processes: one per core, up to eight. More arguments for pytest: make test ARGS="-k claim"
WORKERS ?= logical
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test check fix bench clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

demo: $(VENV)/.runtime ## See it work: a small application, its worker and the dashboard
	$(BIN)/ostinato demo $(ARGS)

test: $(VENV)/.dev ## Run the tests on SQLite and real PostgreSQL servers (ARGS="-k claim" for some)
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal $(ARGS)

check: $(VENV)/.dev ## Check style, formatting, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

fix: $(VENV)/.dev ## Format, and fix what can be fixed without thinking
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: ## Measure Ostinato beside its peers
	$(MAKE) -C bench

clean: ## Remove the environment, the caches and what was built
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Two stamps in one environment: what the package needs to run, then what its developers need.
$(VENV)/.runtime: pyproject.toml requirements-dev.txt
	@echo "Installing Ostinato into $(VENV) …"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint requirements-dev.txt --editable '.[postgres,server]'
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "Installing the tests' and checks' requirements into $(VENV) …"
	$(PIP) install --requirement requirements-dev.txt
	@touch $@
