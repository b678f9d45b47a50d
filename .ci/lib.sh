# What .ci/run and .ci/nightly share: sections with their times, system packages, environments. Sourced by bash.

work=$(mktemp -d "${TMPDIR:-/tmp}/dcron-ci.XXXX")
export TMPDIR=$work # the servers the tests start keep their files and pids below
export PYTHONUNBUFFERED=1
unset PYTHONDONTWRITEBYTECODE # tests start hundreds of processes, and each would compile all it imports
# A failed test gets a second try: a test that fails twice is broken, one that fails once is unsteady and named at the end.
export PYTEST_ADDOPTS="-p tests.second_try"
bearable=3 # unsteady tests
unsteady=()
summary=()
failures=0
closing_line=
beside=

finish() {
    local left_behind # only by a test run that was killed
    [ -z "$beside" ] || [ -e "$work/beside.status" ] || pkill -TERM -P "$beside" 2>/dev/null || true
    for left_behind in "$work"/dcron-*/{,gw*/}*.pid; do
        kill -KILL "$(cat "$left_behind" 2>/dev/null)" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' INT TERM

# Run a command under a title. Record its result, its time and pytest's closing line.
section() {
    local title=$1 started=$SECONDS log=$work/section.log verdict=ok said
    shift
    printf '\n[%s, %d s] ===== %s\n' "$(date +%T)" "$SECONDS" "$title"
    if ! "$@" 2>&1 | tee "$log"; then
        verdict=FAILED
        failures=$((failures + 1))
    fi
    while read -r _ test; do
        unsteady+=("$test ($title)")
    done < <(grep '^UNSTEADY ' "$log" || true)
    said=$(grep -E '^=+ .*[0-9]+ (passed|failed|error|errors)\b.*=$' "$log" | tail -n 1 || true)
    closing_line=${said:-$closing_line}
    summary+=("$(printf '%-6s %5d s  %-36s %s' "$verdict" $((SECONDS - started)) "$title" "${said//=/}")")
}

# Start a command whose processes mostly wait, beside the next sections. `section TITLE ended_beside` reports its result.
beside() {
    {
        status=0
        "$@" >"$work/beside.log" 2>&1 || status=$?
        echo "$status" >"$work/beside.new" && mv "$work/beside.new" "$work/beside.status"
    } &
    beside=$!
}

ended_beside() {
    until [ -e "$work/beside.status" ]; do sleep 1; done
    cat "$work/beside.log"
    return "$(cat "$work/beside.status")"
}

# Print a line for each section, the total time, and pytest's closing line last. Fail if a section failed.
report() {
    printf '\n[%s, %d s] ===== summary\n' "$(date +%T)" "$SECONDS"
    printf '%s\n' "${summary[@]}"
    printf '       %5d s  in total\n' "$SECONDS"
    if [ ${#unsteady[@]} -gt 0 ]; then
        printf 'UNSTEADY, a bug in the test or in what it tests: %s\n' "${unsteady[@]}"
        [ ${#unsteady[@]} -le $bearable ] || failures=$((failures + 1))
    fi
    if [ "$failures" -gt 0 ]; then
        printf '%d of %d sections FAILED\n' "$failures" "${#summary[@]}"
    fi
    printf '%s\n' "$closing_line"
    [ "$failures" -eq 0 ]
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

system_packages() {
    local missing=()
    command -v redis-server >/dev/null || missing+=(redis-server)
    command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ] || missing+=(mariadb-server)
    command -v rabbitmq-server >/dev/null || [ -x /usr/sbin/rabbitmq-server ] || missing+=(rabbitmq-server)
    command -v spin >/dev/null || missing+=(spin)
    command -v chromium >/dev/null || missing+=(chromium)
    command -v promtool >/dev/null || missing+=(prometheus)
    command -v xgettext >/dev/null || missing+=(gettext)
    compgen -G "/usr/lib/*/faketime/libfaketime.so.1" >/dev/null || missing+=(libfaketime)
    command -v pkg-config >/dev/null || missing+=(pkg-config)
    command -v cc >/dev/null || missing+=(gcc libc6-dev)
    pkg-config --exists libmariadb 2>/dev/null || missing+=(libmariadb-dev)
    if [ ${#missing[@]} -eq 0 ]; then
        echo "All are installed."
        return
    fi
    echo "Installing ${missing[*]}"
    as_root apt-get update -qq &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Print the path of Python $1. A name on PATH isn't enough: it may be the shim of a version that isn't selected.
interpreter() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    if [ "$1" = 3.14 ]; then
        bash .ci/python3.14.sh
        return
    fi
    echo "Python $1 is neither on PATH nor among pyenv's versions (${PYENV_ROOT:-$HOME/.pyenv})." >&2
    return 1
}

# Create the environment of `make test` for Python $1, with the MariaDB driver and the lock's Django of line $2.
environment() {
    local venv=.venv-$1 python
    python=$(interpreter "$1") &&
        make --no-print-directory environment VENV="$venv" PYTHON="$python" &&
        locked_django "$2" >"$venv/django.txt" &&
        "$venv/bin/python" -m pip install --quiet --quiet --disable-pip-version-check --no-deps --require-hashes \
            -r requirements/mariadb.txt -r "$venv/django.txt"
}

# The lock's Django of line $1 with its hashes, for any Python.
locked_django() {
    awk -v line="django==$1." 'index($0, line) == 1 { found = 1 } found { print } found && !/\\$/ { exit }' \
        requirements/dev.txt | sed 's/ ;[^\\]*/ /' | grep .
}

# The pins of lock $1 without their hashes, as constraints.
pins() {
    sed -nE 's/^([A-Za-z0-9._-]+==[^ ]+( ;[^\\]*)?) *\\?$/\1/p' "$1"
}

# Run the tests marked $4 on Python $1, Django $2 and database $3.
test_on() {
    environment "$1" "$2" &&
        DCRON_TEST_DATABASE=$3 DCRON_TEST_REDIS_SERVER=$(command -v redis-server) \
            ".venv-$1/bin/python" -m pytest --dist worksteal -n 4 --durations=10 -m "$4"
}
