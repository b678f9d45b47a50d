#!/bin/sh
# Make the virtual environment $1 hold what the lock file $2 says, and this package, editable.
# Says one line when it starts and nothing more unless something is missing.
set -eu
venv=$1
lock=$2

# The chosen interpreter ($PYTHON), or the best there is. Being on PATH is not enough: a version
# manager's shim may stand there for an interpreter that cannot start, and Debian ships venv apart.
find_python() {
    seen=
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || {
            seen="$seen${PYTHON:+ $candidate does not start;}"
            continue
        }
        if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            seen="$seen $candidate is Python $version;"
        elif ! "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            seen="$seen $candidate has no venv module (on Debian and Ubuntu: apt install python$version-venv);"
        else
            echo "$candidate"
            return
        fi
    done
    echo "Missing: Python 3.11 or newer with its venv module.${seen:+ Found:$seen}" >&2
    echo "Install one, or name it: make PYTHON=/path/to/python3 ..." >&2
    return 1
}

explain_failure() {
    tail -n 20 "$log" >&2
    echo >&2
    if grep -qE 'Connection|Retrying|timed out|resolve|No matching distribution|CERTIFICATE|Failed to fetch|error sending request' "$log"; then
        echo "Could not get the packages of $lock. Is the package index reachable from here?" >&2
        echo "Check the network, proxy and pip's configuration (python3 -m pip config list), then run make again." >&2
    else
        echo "Could not install $lock; the lines above say why, all of it is in $log" >&2
    fi
    exit 1
}

# The index of pip's configuration, which uv doesn't read.
index_of_pip() {
    "$venv/bin/python" -m pip config list 2>/dev/null |
        sed -nE "s/^(:env:|global)\.index-url='(.*)'\$/\2/p" | tail -n 1
}

install() {
    "$venv/bin/uv" pip install --quiet --no-progress --python "$venv/bin/python" --no-deps "$@" \
        >>"$log" 2>&1
}

# An environment whose interpreter no longer exists is created again.
if "$venv/bin/python" -c '' 2>/dev/null; then
    echo "Bringing $venv up to date with $lock."
else
    python=$(find_python)
    echo "Making $venv with $("$python" --version), from $lock; this takes a minute, once."
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
log=$venv/install.log
: >"$log"

# uv installs several times faster than pip. All packages come from locks: nothing needs resolving,
# and a package whose content is not the locked one is refused.
"$venv/bin/python" -m pip --disable-pip-version-check --no-input --retries 2 install --quiet \
    --no-deps --require-hashes -r requirements/uv.txt >>"$log" 2>&1 || explain_failure
index=${UV_DEFAULT_INDEX:-$(index_of_pip)}
[ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
install --require-hashes -r "$lock" || explain_failure
install --no-build-isolation --editable . || explain_failure
