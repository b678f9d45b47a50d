#!/usr/bin/env bash
# Compare the locked packages with the known vulnerabilities. Exit code 3: the database of
# vulnerabilities can't be reached from here, so nothing was compared.
set -euo pipefail
cd "$(dirname "$0")/.."
database=https://api.osv.dev

reaches() {
    python3 -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=20).read(1)' "$1" 2>/dev/null
}

if ! reaches "$database/v1/vulns/PYSEC-2019-16"; then
    echo "NOT RUN          nothing compared: $database can't be reached"
    exit 3
fi
run=(pipx run)
[ ! -x .venv/bin/uv ] || run=(.venv/bin/uv tool run --quiet)
failed=
for lock in requirements/*.txt; do
    echo "$lock"
    "${run[@]}" pip-audit --vulnerability-service osv --disable-pip --no-deps --requirement "$lock" || failed=yes
done
[ -z "$failed" ]
