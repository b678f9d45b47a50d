# What .ci/run and .ci/nightly share: sections with their times, system packages, environments.
# Sourced by bash.

work=$(mktemp -d "${TMPDIR:-/tmp}/dcron-ci.XXXX")
export TMPDIR=$work # the servers the tests start keep their files and pids below
export PYTHONUNBUFFERED=1
# Tests start hundreds of processes. Without bytecode, each would compile every module it imports.
unset PYTHONDONTWRITEBYTECODE
# A failed test gets a second try: a test that fails twice is broken, one that fails once is
# flaky and named at the end.
export PYTEST_ADDOPTS="-p tests.second_try -p tests.build_limit"
tolerated=3 # flaky tests
latest_start= # seconds; a section that hasn't begun by then is skipped and named in the summary
latest_test=  # seconds; tests that haven't begun by then are skipped and counted in the summary
touch "$work/flaky" "$work/closing_line"

finish() {
    local lane left_behind
    for lane in $(jobs -p); do pkill -TERM -P "$lane" 2>/dev/null || true; done
    for left_behind in "$work"/dcron-*/{,gw*/}*.pid; do # only by a test run that was killed
        kill -KILL "$(cat "$left_behind" 2>/dev/null)" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' INT TERM

# Run a command under a title. Record its result and time, pytest's closing line and the flaky
# tests in files below $work, because lanes are subshells. A lane prints a section's output when the
# section ends, so that outputs don't mix.
section() {
    local title=$1 started=$SECONDS verdict=ok log line
    shift
    if [ -n "$latest_start" ] && [ "$started" -gt "$latest_start" ]; then
        printf 'NOT RUN          %-44s began too late: %d s\n' "$title" "$started" >>"$work/summary"
        return
    fi
    log=$(mktemp "$work/section.XXXX")
    if [ -n "$latest_test" ]; then
        export DCRON_TEST_NOT_AFTER=$(($(date +%s) - SECONDS + latest_test))
    fi
    if [ -n "${in_lane:-}" ]; then
        "$@" >"$log" 2>&1 || verdict=FAILED
        { flock 9 && heading "$title" && cat "$log"; } 9>"$work/printing"
    else
        heading "$title"
        "$@" 2>&1 | tee "$log" || verdict=FAILED
    fi
    [ "$verdict" = ok ] || { echo "--- $title" && # grep may find nothing
        { grep -E '^E  |^(FAILED|ERROR) |^seed .* fails|--replay ' "$log" || true; } | uniq | sed -n 1,30p; } \
        >>"$work/first_errors"
    { grep '^NOT RUN ' "$log" || true; } | sed "s/$/ ($title)/" >>"$work/summary"
    [ "$verdict" = FAILED ] || ! grep -q '^NOT RUN ' "$log" || verdict=PARTLY
    { grep '^FLAKY ' "$log" || true; } | sed "s/^FLAKY \(.*\)/\1 ($title)/" >>"$work/flaky"
    line=$(grep -E '^=+ .*[0-9]+ (passed|failed|error|errors)\b.*=$' "$log" | tail -n 1 || true)
    if [ -n "$line" ] && { [ "$verdict" = FAILED ] || [ ! -s "$work/closing_line" ]; }; then
        echo "$line" >"$work/closing_line" # of the first suite, unless another one fails
    fi
    printf '%-6s %5d s  %-44s %s\n' "$verdict" $((SECONDS - started)) "$title" "${line//=/}" \
        >>"$work/summary"
}

heading() {
    printf '\n[%s, %d s] ===== %s\n' "$(date +%T)" "$SECONDS" "$1"
}

# Run functions of sections side by side: one may compute while another waits.
lanes() {
    local lane pids=()
    for lane in "$@"; do
        (in_lane=yes && "$lane") &
        pids+=("$!:$lane")
    done
    for lane in "${pids[@]}"; do
        wait "${lane%%:*}" ||
            printf '%-6s          %s did not end\n' FAILED "${lane#*:}" >>"$work/summary"
    done
}

# Print a line for each section, the total time, and pytest's closing line last. Fail if a section
# failed.
report() {
    local failed flaky
    failed=$(grep -c '^FAILED' "$work/summary" || true)
    flaky=$(wc -l <"$work/flaky")
    heading summary
    cat "$work/summary"
    printf '       %5d s  in total\n' "$SECONDS"
    sed 's/^/FLAKY, a bug in the test or in what it tests: /' "$work/flaky"
    [ "$failed" -eq 0 ] || echo "$failed sections FAILED"
    ! grep -q '^NOT RUN' "$work/summary" || echo "Some parts were NOT RUN: see the reasons above"
    [ "$flaky" -le $tolerated ] || echo "$flaky flaky tests; the limit is $tolerated"
    if [ -s "$work/first_errors" ]; then # near the end, as some services keep only the last lines
        heading "first errors of the sections that failed"
        cut -c1-300 "$work/first_errors"
    fi
    cat "$work/closing_line"
    [ "$failed" -eq 0 ] && [ "$flaky" -le $tolerated ]
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

system_packages() {
    local missing=()
    command -v redis-server >/dev/null || missing+=(redis-server)
    command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ] || missing+=(mariadb-server)
    command -v rabbitmq-server >/dev/null || [ -x /usr/sbin/rabbitmq-server ] || missing+=(rabbitmq-server)
    command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || missing+=(pgbouncer)
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
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Print the path of Python $1. A name on PATH isn't enough: it may be the shim of a version that
# isn't selected.
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

# Create the environment of `make test` for Python $1, with the MariaDB driver and the lock's Django
# of line $2.
environment() {
    local venv=.venv-$1 python
    python=$(interpreter "$1") &&
        make --no-print-directory environment VENV="$venv" PYTHON="$python" &&
        locked_django "$2" >"$venv/django.txt" &&
        "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --require-hashes \
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

# Run the tests marked $3 in the environment of Python $1, on database $2.
test_on() {
    DCRON_TEST_DATABASE=$2 DCRON_TEST_REDIS_SERVER=$(command -v redis-server) \
        ".venv-$1/bin/python" -m pytest --dist worksteal -n 2 --durations=10 -m "$3"
}
