# Everything a developer runs. Each target makes the environment it needs by itself, once.
#
#   make demo            the example site, until Ctrl-C     make demo FOR=20   the same for 20 seconds
#   make test            all tests                          make test TESTS=tests/domain
#   make browser         the admin in Chromium, on PostgreSQL               make browser DATABASE=sqlite
#   make chaos           faults of all kinds, 10 minutes, on PostgreSQL     make chaos DATABASE=mariadb
#   make lint            style, types, import contracts, migrations
#   make bench           how fast, beside others: 20 minutes    make bench BENCH=quick   a look, 7 minutes
#   make screenshots     the pictures of the README, into docs/images (needs chromium and libfaketime)
#   make messages        collect the texts to translate, and compile the translations (needs gettext)
#   make lock            newest allowed versions into requirements/*.txt (needs uv)
#   make clean           remove the environment
#
# PYTHON=python3.12 chooses the interpreter, VENV=.venv-3.12 the place of the environment, PARALLEL=1 how many tests
# run side by side, each session with servers of its own, WITHIN=1200 how many seconds `make chaos` may take.

VENV   ?= .venv
PYTHON ?=
FOR    ?=
TESTS  ?=
PARALLEL ?= 2
BENCH  ?=
DATABASE ?= postgresql
WITHIN ?= 600

python = $(VENV)/bin/python
pytest = $(python) -m pytest -n $(PARALLEL)
lock   = uv pip compile --quiet --universal --python-version 3.11 --no-annotate --upgrade \
         --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help demo test browser chromium chaos bench screenshots messages lint style types contracts migrations environment lock clean

help:
	@sed -n '3,15s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.demo
	@$(python) example_project/demo.py $(if $(FOR),--for $(FOR))

# SQLite carries the whole suite but the browser's; what only PostgreSQL can show runs first, on an embedded one.
# TESTS= may choose tests of which none needs PostgreSQL: "nothing to run" (5) is fine there.
test: $(VENV)/.dev
	@DCRON_TEST_DATABASE=postgresql $(pytest) -m "postgresql and not chaos" $(TESTS) $(if $(TESTS),|| [ $$? -eq 5 ])
	@DCRON_TEST_DATABASE=sqlite $(pytest) -m "not browser" $(TESTS)

browser: $(VENV)/.dev chromium
	@DCRON_TEST_DATABASE=$(DATABASE) $(pytest) -m browser $(or $(TESTS),tests/browser)

chromium:
	@command -v chromium >/dev/null || { echo "Missing: chromium (on Debian and Ubuntu: apt install chromium)" >&2; exit 1; }

# Scenarios with real processes that are killed, frozen, cut off and misled; ends with what became of the occurrences.
chaos: $(VENV)/.dev
	@DCRON_TEST_DATABASE=$(DATABASE) DCRON_TEST_DEADLINE=$(WITHIN) $(pytest) -m chaos $(or $(TESTS),tests/cluster)

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

lock:
	@$(lock) pyproject.toml requirements/demo.in -o requirements/demo.txt
	@$(lock) --all-extras pyproject.toml requirements/dev.in -c requirements/demo.txt -o requirements/dev.txt
	@$(lock) requirements/mariadb.in -o requirements/mariadb.txt
	@$(lock) requirements/bench.in -o requirements/bench.txt

clean:
	@rm -rf $(VENV)
