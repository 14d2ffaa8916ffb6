# Every command a contributor needs. `make` alone lists them; each one first installs what it uses.

PYTHON ?= python3
ARGS ?=
# Which ones: make test TESTS=tests/unit
TESTS ?= tests
# Tests wait for servers more than they compute: three processes keep two cores busy.
TEST_PROCESSES ?= 3

VENV := .venv
BIN := $(VENV)/bin
SERVERS := $(BIN)/python -m tests.support.servers
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url --no-emit-find-links pyproject.toml

# Stamps inside .venv: removing it removes them, and an installed project costs make nothing.
CREATED := $(VENV)/.created
RUNTIME := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help install run test check servers servers-stop stack bench bench-redirect faults api lock clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  Options for a command go into ARGS: make run ARGS="--port 9000", make test ARGS="-k outbox" TESTS=tests/unit'

install: $(RUNTIME) ## Prepare .venv with the locked dependencies and the package

run: $(RUNTIME) ## Start Refract in one process on http://127.0.0.1:8080 with its data in ./data
	@exec $(BIN)/refract serve $(ARGS)

test: $(DEV) ## Run the tests over real servers, private ones unless TEST_* variables name others
	@exec $(SERVERS) run -- $(BIN)/python -m pytest $(TESTS) --numprocesses $(TEST_PROCESSES) --dist loadfile \
		--no-loadscope-reorder $(ARGS)

check: $(DEV) ## Check style, types and the walls between the rooms
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict src tests benchmarks
	$(BIN)/lint-imports --config importlinter.ini
	$(BIN)/python -m pytest -q tests/architecture

servers: $(DEV) ## Keep the test servers up between runs, and print where they are
	@$(SERVERS) up

servers-stop: $(DEV) ## Stop the servers that `make servers` keeps up
	@$(SERVERS) down

stack: $(DEV) ## Start every service as its own process over local servers, without Docker
	@exec $(BIN)/python -m tests.support.stack $(ARGS)

bench: $(DEV) ## Measure, and print the figures
	@exec $(BIN)/python -m benchmarks $(ARGS)

bench-redirect: $(DEV) ## Measure redirects of an embedded instance beside nginx
	@exec $(BIN)/python -m benchmarks redirect $(ARGS)

faults: $(DEV) ## Run the full fault and load tests; takes the better part of an hour
	@exec $(SERVERS) run -- $(BIN)/python -m pytest $(TESTS) -m full $(ARGS)

api: $(DEV) ## Write docs/api, and what the gateway serves of it, anew from the code
	$(BIN)/python -m refract.apps.api_documents docs/api src/refract/services/gateway/http/served

lock: $(DEV) ## Write both lock files anew from pyproject.toml, for every Python from 3.11 on
	$(LOCK) $(ARGS) --extra build --output-file requirements.lock
	$(LOCK) $(ARGS) --extra build --extra dev --constraint requirements.lock --output-file requirements-dev.lock

clean: ## Remove .venv and everything else that can be made again; ./data stays
	@if [ -d .servers ] && [ -x $(BIN)/python ]; then $(SERVERS) down; fi
	rm -rf $(VENV) .servers .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo 'Refract needs Python 3.11 or newer; "$(PYTHON)" is not. Name another: make PYTHON=python3.12 …' >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo 'Installing python3-venv with apt-get …'; \
			log=$$(mktemp); { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-venv; } \
				>"$$log" 2>&1 || { cat "$$log" >&2; exit 1; }; \
		else \
			echo 'Python cannot make virtual environments: install the Debian package python3-venv.' >&2; exit 1; \
		fi; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(RUNTIME): requirements.lock pyproject.toml | $(CREATED)
	@echo 'Installing the locked dependencies into $(VENV) …'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(DEV): requirements-dev.lock $(RUNTIME)
	@echo 'Installing what tests and checks need into $(VENV) …'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@
