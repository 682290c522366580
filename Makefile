# `make demo` and `make test` need nothing but Python 3.11 and make: they set up
# a virtual environment first.  GNU make 3.81, which macOS has, is new enough.

# Another interpreter gets an environment of its own: PYTHON=python3.12 uses
# .venv-3.12, so that trying one does not disturb the other.
PYTHON ?= python3
VENV ?= .venv$(if $(filter-out python3,$(PYTHON)),-$(patsubst python%,%,$(notdir $(PYTHON))))
ARGS ?=
# One test more at once than there are cores, up to four, since many tests wait.  ARGS="-n0 ..."
# has them one by one.
AT_ONCE = -n $(shell $(PY) -c "import os; print(min(4, os.cpu_count() + 1))") --dist=worksteal
# What runs the package; the others look at texts, types and programs around it.
COVERING := tests/core tests/worker tests/runtime tests/e2e tests/cli
LAYERS := _core _engine _wire _worker _cluster _remote cluster _cli
SOAK ?= --seed 1 --minutes 0.5

OLDEST := 3.11
NEWEST := 3.15
SUPPORTED := 3.11 3.12 3.13 3.14 3.15
# Names of tests that depend on the interpreter: pickles, classes by value, threads and forks,
# interrupts, tracebacks, and what asyncio does.  Each change passes them on the newest one, too.
INTERPRETER := by_value or class_making or class_reduction or kinds_of_classes or pickl or \
  out_of_band or reducers or traceback or variables or interrupt or thread or fork or \
  interpreter or multiprocessing or newest_pythons or other_loops or scripts or \
  task_names or coroutine or test_stream or executor_differences or test_execute or lanes or test_process
BIN := $(VENV)/bin
PY := $(BIN)/python

# It comes with a Node.js, and would ask PyPI at each call whether it is the newest.
PYRIGHT := PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(PY) -m pyright --pythonpath $(PY)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two installations at once into one environment would break it.
.NOTPARALLEL:
.PHONY: help demo demo-cluster test nightly programs lint weight types docs soak fuzz unit real coverage faults walks format test-all newest bench torture bytecode clean

help: ## Print the targets
	@echo "usage: make TARGET [PYTHON=python3.12] [ARGS=\"options of the program\"]"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1	\2/p' Makefile | expand -t 16

demo: $(VENV)/.installed-demo bytecode ## Parse the whole standard library in a pool; ARGS="--chaos 0.02"
	@$(PY) examples/stdlib_census.py $(ARGS)

demo-cluster: $(VENV)/.installed-ray bytecode ## The same on three nodes of Ray, one of which is killed; ARGS="--limit 600"
	@$(PY) examples/cluster_census.py $(ARGS)

test: programs lint docs ## Everything a change must pass: lint, types, the site and all tests
	@$(MAKE) --no-print-directory soak & soak=$$!; \
	$(MAKE) --no-print-directory types; types=$$?; wait $$soak && exit $$types
	@$(MAKE) --no-print-directory unit

# With other choices each time.  All of it is run, whatever fails.
nightly: export ASYNCPOOL_NIGHT := yes
nightly: programs ## What takes a night: every Python and loop, long searches for faults
	@failed=; night() { $(MAKE) --no-print-directory "$$@" || failed="$$failed $$1"; }; \
	night soak SOAK="--minutes 30"; \
	night walks ARGS="--minutes 60"; \
	night fuzz ARGS="--seconds 3600"; \
	night unit HYPOTHESIS_PROFILE=deep \
	  ARGS="-m hypothesis --timeout 7200 -o faulthandler_timeout=7000"; \
	night test-all; \
	night real; \
	night faults; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

programs: ## A Redis server, Prometheus, nginx and Chromium for the tests, unpacked here if the machine has none
	@.ci/programs

lint: $(VENV)/.installed-test ## Style, formatting, the direction of imports, and no more weight
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(BIN)/lint-imports
	$(PY) .ci/weight.py --check

weight: $(VENV)/.installed-test ## What the project weighs, beside its ceilings; ARGS=--lower records it
	@$(PY) .ci/weight.py $(ARGS)

# pyright verifies the types of an installed package, and takes none for installed that is
# editable: hence the PYTHONPATH.
types: $(VENV)/.installed-test ## mypy and pyright in their strict modes
	$(PY) -m mypy
	$(PYRIGHT)
	PYTHONPATH="$(CURDIR)" $(PYRIGHT) --ignoreexternal --verifytypes asyncpool

# Without its cache, which does not know that a docstring has changed.
docs: $(VENV)/.installed-docs ## The site, into build/site; a dead link or an unknown name fails
	@mkdir -p build
	$(BIN)/zensical build --strict --clean

soak: $(VENV)/.installed-test bytecode ## Pools under random faults; SOAK="--seed 7 --minutes 10"
	$(PY) -m tests.soak $(SOAK)

# atheris is not there for every Python; without it Hypothesis makes the inputs.
fuzz: $(VENV)/.installed-test bytecode ## Anything for the decoders of what workers send; ARGS="--seconds 3600"
	-@$(PY) -m pip install --quiet --disable-pip-version-check --only-binary :all: "atheris>=3" 2>/dev/null
	$(PY) -m tests.fuzz $(ARGS)

unit: $(VENV)/.installed-test bytecode ## The tests alone; ARGS="-n0 -k takeover"
	$(PY) -m pytest -q $(AT_ONCE) $(ARGS)

real: $(VENV)/.installed-real $(VENV)/.installed-ray bytecode ## With freezers, servers, data libraries, APM agents and Ray, all heavy to install
	$(PY) -m pytest -q -n0 tests/e2e/test_threads.py tests/real tests/ray $(ARGS)

# Processes of a test may run in another folder: hence the whole name of the file that theirs
# begin with.  One that is killed while it writes leaves a broken one.
coverage: export COVERAGE_FILE := $(CURDIR)/build/coverage/data
coverage: $(VENV)/.installed-coverage bytecode ## Which lines the tests run, in workers too; ARGS=tests/e2e
	@rm -rf build/coverage && mkdir -p build/coverage
	-$(PY) -m coverage run -m pytest -q $(AT_ONCE) $(or $(ARGS),$(COVERING))
	-@$(PY) -m coverage combine -q 2>/dev/null
	@rm -f build/coverage/data.*
	@$(PY) -m coverage html -q -d build/coverage/html
	@for layer in $(LAYERS); do \
	  printf '%-9s %s %%\n' "$$layer" \
	    `$(PY) -m coverage report --format=total --include="asyncpool/$$layer/*"`; done
	@echo "line by line: build/coverage/html/index.html"

faults: $(VENV)/.installed-test bytecode ## Which tests find planted faults, for hours; ARGS="leases mutants --all-tests"
	$(PY) -m tests.faults $(ARGS)

walks: $(VENV)/.installed-test bytecode ## The model of the supervisor at random; ARGS="--minutes 10 --seed 7"
	$(PY) -m tests.random_walks $(ARGS)

format: $(VENV)/.installed-test ## Format the code and repair what ruff can repair
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

test-all: ## All tests with all loops, on every supported Python that can be had
	@tested=; failed=; for version in $(SUPPORTED); do \
	  python=$$(.ci/python .pythons "$$version") || { \
	    echo "== python$$version: SKIPPED, it is not here and cannot be had (see above)"; \
	    continue; \
	  }; \
	  echo "== $$python"; tested="$$tested $$version"; \
	  ASYNCPOOL_LOOPS=$${ASYNCPOOL_LOOPS-both} $(MAKE) --no-print-directory unit \
	    PYTHON="$$python" VENV=".venv-$$version" || failed="$$failed $$version"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed on:$$failed" >&2; exit 1; fi; \
	if [ -z "$$tested" ]; then echo "SKIPPED: none of $(SUPPORTED) can be had" >&2; fi; \
	echo "passed on:$$tested"

# Tests that are for both loops run with the other one here.  What Hypothesis finds seldom
# depends on the Python: there are fewer examples.
newest: ## On the newest Python, the tests that depend on the interpreter
	@ASYNCPOOL_LOOPS=other HYPOTHESIS_PROFILE=brief $(MAKE) --no-print-directory test-all \
	  SUPPORTED=$(NEWEST) ARGS="-k '$(INTERPRETER)' $(ARGS)"

bench: $(VENV)/.installed-bench bytecode ## asyncpool and its peers side by side; ARGS=--cluster for servers
	$(PY) -m benchmarks $(ARGS)

torture: $(VENV)/.installed-bench bytecode ## asyncpool and its peers through the same faults
	$(PY) -m benchmarks.torture $(ARGS)

# As pip does with what it installs, but not with what is editable.  Where Python is told
# to write none (PYTHONDONTWRITEBYTECODE), every launcher would compile the worker's side.
bytecode: | $(PY)
	@$(PY) -m compileall -q asyncpool tests examples benchmarks

clean: ## Remove the environments and everything that was generated
	rm -rf .venv .venv-* .pythons .redis .prometheus .nginx .chromium build dist .mypy_cache .ruff_cache .pytest_cache \
	  .hypothesis .import_linter_cache .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of extras.  pip adds what is missing and leaves the
# rest alone, so the order in which they are installed does not matter.
$(VENV)/.installed-demo: EXTRAS := demo
$(VENV)/.installed-test: EXTRAS := demo,test,uvloop
$(VENV)/.installed-real: EXTRAS := demo,test,uvloop,real
$(VENV)/.installed-coverage: EXTRAS := demo,test,uvloop,coverage
$(VENV)/.installed-bench: EXTRAS := demo,bench
$(VENV)/.installed-docs: EXTRAS := docs
$(VENV)/.installed-ray: EXTRAS := demo,ray
$(VENV)/.installed-%: pyproject.toml | $(PY)
	@echo "installing asyncpool-supervised[$(EXTRAS)] into $(VENV) ..."
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip >/dev/null
	@$(PY) -m pip install --quiet --disable-pip-version-check --editable ".[$(EXTRAS)]"
	@touch $@

# An environment that is not whole is removed: its python would be there, and the
# next call would take it for a good one.  The .gitignore keeps git, and with it
# ruff, out of environments with other names than .venv.
$(PY):
	@$(PYTHON) -c 'pass' || { \
	  echo "$(PYTHON) does not run. Install Python $(OLDEST) or newer, or name one:" >&2; \
	  echo "    make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < tuple(map(int, "$(OLDEST)".split("."))))' || { \
	  echo "asyncpool needs Python $(OLDEST) or newer; $(PYTHON) is `$(PYTHON) -V 2>&1`. Name another:" >&2; \
	  echo "    make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "creating $(VENV) with $(PYTHON) ..."
	@$(PYTHON) -m venv --clear $(VENV) && $(PY) -m pip --version >/dev/null || { \
	  rm -rf $(VENV); \
	  echo "$(PYTHON) cannot create a virtual environment (see above)." >&2; \
	  echo "On Debian and Ubuntu: sudo apt install python3-venv" >&2; \
	  echo "Or use another Python: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@echo '*' > $(VENV)/.gitignore
