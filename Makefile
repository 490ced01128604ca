# Every command of the project. Needs Python 3.11+ and make; see README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

PORT ?= 8000
UPSTREAM ?=
PYTEST_ARGS ?=
# The tests mostly wait, for servers and clients of their own: three at a time, a file by one of them.
PARALLEL ?= -n 3 --dist loadfile
N ?= 131072
FLOOD_ARGS ?=
BENCH_ARGS ?=
SDKS ?=
CASES ?=
REASON ?=

.PHONY: help setup run test flood load bench test-system instructions instructions-record
.PHONY: faults soak fuzz
.PHONY: sdk-matrix sdk-locks check format lint types
.PHONY: wheel protos lock clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

setup: $(STAMP) ## create .venv from requirements.lock

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

run: $(STAMP) ## stand-in vLLM and gateway (UPSTREAM=http://host:8001 PORT=8000 for a real one)
	@$(BIN)/python examples/run_local.py --port $(PORT) $(if $(UPSTREAM),--upstream $(UPSTREAM))

test: $(STAMP) ## the whole test suite
	$(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

flood: $(STAMP) ## N samples in flight at once under batched polls, twice (N=131072)
	@$(BIN)/python -m tests.support.flood --samples $(N) $(FLOOD_ARGS)

SCENARIO ?= burst
TIME ?= 1
LOAD_ARGS ?=
# STORE=valkey starts a server of it for the run; WORKERS needs that.
STORE ?= memory
WORKERS ?= 1
WITH_STORE = $(if $(filter valkey,$(STORE)),$(BIN)/python -m tests.support.with_valkey)
LOAD := build/load
# N only where it was given: each scenario has its own count.
LOAD_N = $(if $(filter file,$(origin N)),,$(N))
LOAD_FILE = $(LOAD)/$(SCENARIO)$(if $(LOAD_N),-$(LOAD_N))
load: $(STAMP) ## SCENARIO=burst N=131072 TIME=1 STORE=memory WORKERS=1: stand-in, gateway, client; results in build/load
	@rm -rf $(LOAD)/state && mkdir -p $(LOAD)
	@$(WITH_STORE) $(BIN)/python -m loadgen run --scenario $(SCENARIO) $(if $(LOAD_N),--samples $(LOAD_N)) \
	  --time $(TIME) --pin \
	  --start "env ASGI_GATEWAY_CLIENT__SAMPLE_USE_RETRIEVE_FUTURES=true \
	    ASGI_GATEWAY_STATE__DIR=$(LOAD)/state ASGI_GATEWAY_DRAIN__PREDRAIN_S=0 \
	    $(BIN)/python -m asgi_gateway serve --workers $(WORKERS) --port 0 --upstream {upstream}" \
	  --json $(LOAD_FILE).json --html $(LOAD_FILE).html $(LOAD_ARGS)

FAULTS_ARGS ?=
# N only where it was given, as above: so many connections of slow clients.
FAULTS_N = $(if $(filter file,$(origin N)),,--sockets $(N))
faults: $(STAMP) ## every fault for real, judged by the ledger (N=1000 FAULTS_ARGS="--only NAME")
	@mkdir -p build
	@$(BIN)/python -m tests.faults $(FAULTS_N) --json build/faults.json $(FAULTS_ARGS)

SOAK_ARGS ?=
soak: $(STAMP) ## two hours of load and churn, then memory's slope and what is left (TIME=0.25)
	@mkdir -p build
	@$(BIN)/python -m tests.soak --time $(TIME) --json build/soak.json $(SOAK_ARGS)

FUZZ_ARGS ?=
# CASES is of the targets together; machines run with FUZZ_EFFORT times as many examples.
fuzz: $(STAMP) ## CASES=1000000 FUZZ_ARGS="--processes 2 --json FILE": hostile input, long machines
	FUZZ_EFFORT=10 $(BIN)/python -m pytest -q -o timeout=900 tests/store/test_memory_machine.py \
	  tests/upstream/test_dispatch_machine.py tests/test_sessions_machine.py \
	  tests/test_gateway_machine.py
	@$(BIN)/python -m tests.fuzz $(if $(CASES),--cases $(CASES)) $(FUZZ_ARGS)

bench: $(STAMP) ## every figure, its floor and its target (BENCH_ARGS="--quick --json FILE")
	@$(BIN)/python -m tests.bench $(BENCH_ARGS)

test-system: $(STAMP) ## tests that need Debian packages; installs those when root
	@sh tests/debian_packages.sh
	$(BIN)/python -m pytest -m system $(PYTEST_ARGS)

instructions: $(STAMP) ## instruction counts of the hot functions against the stored ones
	@sh tests/debian_packages.sh
	@$(BIN)/python -m tests.bench.instructions $(CASES)

export REASON
instructions-record: $(STAMP) ## store them; a rise of over 5% needs REASON="..."
	@sh tests/debian_packages.sh
	@$(BIN)/python -m tests.bench.instructions --record --reason "$$REASON"

sdk-matrix: $(STAMP) ## every released SDK that is listed, or SDKS="0.18.2 0.38.0"
	$(BIN)/python tests/contract/sdks/install.py $(SDKS)
	SDKS="$(SDKS)" SDK_SUPPORT=docs/sdk-support.json \
	  $(BIN)/python -m pytest -m matrix tests/contract/sdks tests/loadgen $(PYTEST_ARGS)
	$(BIN)/python docs/sdk_support.py

check: format lint types protos-fresh docs-valid ## format, lint, types, generated code fresh, docs valid

format: $(STAMP)
	$(BIN)/ruff format --check .

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

.PHONY: protos-fresh docs-valid
protos-fresh: $(STAMP)
	$(BIN)/python protos/generate.py --check

docs-valid: docs
	$(BIN)/python docs/check.py

.PHONY: docs
docs: $(STAMP) ## the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet no warning counts

wheel: $(STAMP) ## wheel and source distribution, in dist
	$(BIN)/python -m hatchling build -d dist

protos: $(STAMP) ## regenerate the protobuf modules
	$(BIN)/python protos/generate.py

lock: $(STAMP) ## rewrite requirements.lock from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --group dev --universal --generate-hashes \
	  --python-version 3.11 --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" -o requirements.lock

sdk-locks: $(STAMP) ## rewrite the locks of the older SDKs (needs uv)
	$(BIN)/python -m tests.contract.sdks.lock

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
