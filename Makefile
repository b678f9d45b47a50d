# Everything a developer runs. Each target makes the environment it needs by itself, once.
#
#   make demo            the example site, until Ctrl-C     make demo FOR=20   the same for 20 seconds
#   make test            all tests, on PostgreSQL           make test TESTS=tests/runs     some   make test DATABASE=sqlite
#   make fuzz            hostile input for parsers, forms and the REST API: a minute
#   make browser         the admin in Chromium              make browser DATABASE=sqlite
#   make chaos           faults of all kinds, 10 minutes    make chaos CHAOS=quick   six scenarios, 3 minutes
#   make nightly         hours: every test on every database, Python and Django, all faults, mutation testing
#   make lint            style, types, import contracts, migrations
#   make docs            the docs site, into docs/_build/html; warnings and broken links are errors
#   make bench           how fast, beside others: 20 minutes    make bench BENCH=quick   a look, 7 minutes
#   make screenshots     the pictures of the README, into docs/images (needs chromium and libfaketime)
#   make messages        collect the texts to translate, and compile the translations (needs gettext)
#   make lock            newest allowed versions into requirements/*.txt (needs uv)
#   make clean           remove the environment
#
# PYTHON=python3.12 chooses the interpreter, VENV=.venv-3.12 the place of the environment, PARALLEL=1 how many tests run side by
# side (each with servers of its own), MARKS="not slow" the tests by marker, WITHIN=1200 how many seconds `make chaos` may take.

VENV   ?= .venv
DOCS_VENV ?= .venv-docs
PYTHON ?=
FOR    ?=
TESTS  ?=
MARKS  ?= not chaos and not browser and not nightly and not fuzz
# Twice the cores of a small machine: tests that start processes mostly wait for them.
PARALLEL ?= 4
BENCH  ?=
CHAOS  ?=
DATABASE ?= postgresql
WITHIN ?= 600

python = $(VENV)/bin/python
pytest = DCRON_TEST_DATABASE=$(DATABASE) $(python) -m pytest --dist worksteal -n
lock   = uv pip compile --quiet --universal --python-version 3.11 --no-annotate --upgrade \
         --custom-compile-command "make lock"
hashed = $(lock) --generate-hashes

sphinx = $(DOCS_VENV)/bin/python -m sphinx --quiet --nitpicky --fail-on-warning --keep-going -d docs/_build/doctrees

# Tests start hundreds of processes. Without compiled modules each of them would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz browser chromium chaos nightly docs bench screenshots messages lint style types contracts \
        migrations environment lock clean

help:
	@sed -n '3,15s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.demo
	@$(python) example_project/demo.py $(if $(FOR),--for $(FOR))

test: $(VENV)/.dev
	@$(pytest) $(PARALLEL) --durations=20 -m "$(MARKS)" $(TESTS)

# A fixed number of examples, the same each time. DCRON_TEST_EXAMPLES=1000 tries more of them.
fuzz: $(VENV)/.dev
	@$(pytest) 2 --durations=5 -m fuzz $(TESTS)

browser: $(VENV)/.dev chromium
	@$(pytest) 3 -m browser $(or $(TESTS),tests/browser)

chromium:
	@command -v chromium >/dev/null || { echo "Missing: chromium (on Debian and Ubuntu: apt install chromium)" >&2; exit 1; }

# Scenarios with real processes that are killed, frozen, cut off and misled; ends with what became of the occurrences.
chaos: $(VENV)/.dev
	@DCRON_TEST_DEADLINE=$(WITHIN) $(pytest) 3 -m "chaos$(if $(filter quick,$(CHAOS)), and not nightly)" $(or $(TESTS),tests/cluster)

nightly:
	@bash .ci/nightly

# Links to other hosts aren't checked: a build must not depend on them.
docs: $(DOCS_VENV)/.docs
	@$(sphinx) -b html docs docs/_build/html
	@$(sphinx) -b linkcheck docs docs/_build/linkcheck
	@echo "The site is in docs/_build/html/index.html."

# The contestants' environments go below .bench/, made once from requirements/bench.txt.
bench: $(VENV)/.dev
	@$(python) -m benchmarks $(if $(filter quick,$(BENCH)),--quick)

lint: style types contracts migrations

style: $(VENV)/.dev
	@$(python) -m ruff check --quiet
	@$(python) -m ruff format --quiet --check

types: $(VENV)/.dev
	@$(python) -m mypy

contracts: $(VENV)/.dev
	@$(VENV)/bin/lint-imports

# Needs libfaketime, too: on the pictures it is always the same moment.
screenshots: $(VENV)/.dev chromium
	@$(python) example_project/screenshots.py docs/images

messages: $(VENV)/.dev
	@mkdir -p django_dcron/locale
	@cd django_dcron && $(abspath $(python)) -P -m django makemessages --locale de --locale zh_Hans \
	    --no-wrap --no-obsolete --add-location file
	@cd django_dcron && $(abspath $(python)) -P -m django compilemessages

migrations: $(VENV)/.dev
	@DJANGO_SETTINGS_MODULE=tests.settings DCRON_TEST_DATABASE_NAME=:memory: $(python) -m django makemigrations --check --dry-run

environment: $(VENV)/.dev
	@:

# The stamps: an environment is as old as the lock it was made from. The tests' lock holds the demo's too.
$(VENV)/.dev: requirements/dev.txt
	@PYTHON="$(PYTHON)" sh requirements/install.sh $(VENV) $<
	@touch $(VENV)/.demo $@

$(VENV)/.demo: requirements/demo.txt
	@PYTHON="$(PYTHON)" sh requirements/install.sh $(VENV) $<
	@touch $@

$(DOCS_VENV)/.docs: requirements/docs.txt
	@PYTHON="$(PYTHON)" sh requirements/install.sh $(DOCS_VENV) $<
	@touch $@

lock:
	@$(hashed) pyproject.toml requirements/demo.in -o requirements/demo.txt
	@$(hashed) --all-extras pyproject.toml requirements/dev.in -c requirements/demo.txt -o requirements/dev.txt
	@$(hashed) pyproject.toml requirements/docs.in -c requirements/demo.txt -o requirements/docs.txt
	@$(hashed) requirements/mariadb.in -o requirements/mariadb.txt
	@# Constraints for packages that the benchmarks name without a version, which pip refuses to combine with hashes.
	@$(lock) requirements/bench.in -o requirements/bench.txt

clean:
	@rm -rf $(VENV) $(DOCS_VENV) docs/_build
