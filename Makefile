# What developers run. Each target creates the environment that it needs.
#
#   make demo            run the example site until Ctrl-C; make demo FOR=20 stops after 20 seconds
#   make test            run all tests on PostgreSQL
#                        make test TESTS=tests/runs, make test DATABASE=sqlite
#   make fuzz            send hostile input to parsers, forms and the REST API: a minute
#   make browser         test the admin in Chromium; make browser DATABASE=sqlite
#   make chaos           inject faults of all kinds; CHAOS=quick: a third of the scenarios, 6 minutes
#   make volume          run 1,000,000 occurrences through real processes, with faults: an hour and
#                        a half; OCCURRENCES=20000 RATE=100: a smaller, slower run
#   make simulate        simulate 1,000 hours of a cluster, and add them to the recorded totals;
#                        HOURS=100: fewer
#   make nightly         run every test on every database, Python and Django, all faults, mutation
#                        testing: hours
#   make lint            check style, types, import contracts and migrations
#   make docs            build the docs site in docs/_build/html; warnings and broken links fail
#   make reference       write the generated parts of docs/reference
#   make bench           measure the speed beside other schedulers: about an hour; BENCH=quick: 12 minutes
#   make screenshots     take the pictures of the docs (needs chromium and libfaketime)
#   make messages        collect the translatable texts and compile them (needs gettext)
#   make lock            update requirements/*.txt to the newest allowed versions
#   make clean           remove the environments
#
# Variables: PYTHON=python3.12 chooses the interpreter. VENV=.venv-3.12 is the directory of the
# environment. PARALLEL=1 is the number of parallel test sessions, each with its own servers.
# MARKS="not slow" selects tests by marker. WITHIN=1200 limits the seconds of `make chaos`, and
# HISTORIES=directory makes it write what happened, for `python -m tests.verdict`.

VENV   ?= .venv
DOCS_VENV ?= .venv-docs
PYTHON ?=
FOR    ?=
TESTS  ?=
MARKS  ?= not chaos and not browser and not nightly and not fuzz
# One more than a small machine has cores, because tests wait for servers and other processes.
PARALLEL ?= 3
BENCH  ?=
CHAOS  ?=
HISTORIES ?=
HOURS  ?= 1000
OCCURRENCES ?= 1000000
RATE   ?= 200
DATABASE ?= postgresql
WITHIN ?= 3600

python = $(VENV)/bin/python
pytest = DCRON_TEST_DATABASE=$(DATABASE) $(python) -m pytest --dist worksteal -n
lock   = $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --upgrade \
         --custom-compile-command "make lock"
hashed = $(lock) --generate-hashes

sphinx = $(DOCS_VENV)/bin/python -m sphinx --quiet --nitpicky --fail-on-warning --keep-going \
         -d docs/_build/doctrees

# Tests start hundreds of processes. Without bytecode, each would compile every module it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz browser chromium chaos volume simulate nightly docs reference bench screenshots messages \
        lint style types contracts migrations environment lock clean

help:
	@sed -n '3,21s/^# \{0,1\}//p' Makefile

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
	@command -v chromium >/dev/null || { \
	    echo "Missing: chromium (on Debian and Ubuntu: apt install chromium)" >&2; exit 1; }

# Kills, suspends and isolates real processes. The summary counts lost and duplicated occurrences.
chaos: $(VENV)/.dev
	@DCRON_TEST_DEADLINE=$(WITHIN) DCRON_TEST_HISTORIES=$(HISTORIES) $(pytest) 2 \
	    -m "chaos$(if $(filter quick,$(CHAOS)), and not nightly)" $(or $(TESTS),tests/cluster)

# One scenario with many occurrences; its progress is logged.
volume: $(VENV)/.dev
	@DCRON_TEST_OCCURRENCES=$(OCCURRENCES) DCRON_TEST_RATE=$(RATE) $(pytest) 0 -m chaos \
	    --log-cli-level=INFO tests/cluster/test_volume.py

# Real code in virtual time, with faults; each simulation has a fresh seed.
simulate: $(VENV)/.dev
	@$(python) -m tests.simulation --hours $(HOURS) --processes $(PARALLEL) --resume

nightly:
	@bash .ci/nightly

# Links to other hosts aren't checked: a build must not depend on them.
docs: $(DOCS_VENV)/.docs
	@$(sphinx) -b html docs docs/_build/html
	@$(sphinx) -b linkcheck docs docs/_build/linkcheck
	@echo "The site is in docs/_build/html/index.html."

# Tables and signatures are Markdown in the files, so that code hosts show them, too.
reference: $(VENV)/.dev
	@$(python) docs/reference_tables.py

# The environments of the other schedulers are created once in .bench, from requirements/bench.txt.
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

# libfaketime fixes the time, so that pictures change only if the pages do.
screenshots: $(VENV)/.dev chromium
	@$(python) example_project/screenshots.py docs/images

messages: $(VENV)/.dev
	@mkdir -p django_dcron/locale
	@cd django_dcron && $(abspath $(python)) -P -m django makemessages --locale de --locale zh_Hans \
	    --no-wrap --no-obsolete --add-location file
	@cd django_dcron && $(abspath $(python)) -P -m django compilemessages

migrations: $(VENV)/.dev
	@DJANGO_SETTINGS_MODULE=tests.settings DCRON_TEST_DATABASE_NAME=:memory: \
	    $(python) -m django makemigrations --check --dry-run

environment: $(VENV)/.dev
	@:

# The stamps: an environment is as old as its lock. The lock of the tests includes the demo's.
$(VENV)/.dev: requirements/dev.txt requirements/uv.txt
	@PYTHON="$(PYTHON)" sh requirements/install.sh $(VENV) $<
	@touch $(VENV)/.demo $@

$(VENV)/.demo: requirements/demo.txt requirements/uv.txt
	@PYTHON="$(PYTHON)" sh requirements/install.sh $(VENV) $<
	@touch $@

$(DOCS_VENV)/.docs: requirements/docs.txt requirements/uv.txt
	@PYTHON="$(PYTHON)" sh requirements/install.sh $(DOCS_VENV) $<
	@touch $@

lock: $(VENV)/.dev
	@$(hashed) pyproject.toml requirements/demo.in -o requirements/demo.txt
	@$(hashed) --all-extras pyproject.toml requirements/dev.in -c requirements/demo.txt -o requirements/dev.txt
	@$(hashed) pyproject.toml requirements/docs.in -c requirements/demo.txt -o requirements/docs.txt
	@$(hashed) requirements/mariadb.in -o requirements/mariadb.txt
	@$(hashed) requirements/uv.in -o requirements/uv.txt
	@# The benchmarks name these packages without a version. pip can't combine that with hashes.
	@$(lock) requirements/bench.in -o requirements/bench.txt

clean:
	@rm -rf $(VENV) $(DOCS_VENV) docs/_build
