"""Run all benchmarks one after another, each in a separate process and directory.

Prints one table and writes all figures as JSON: a file per day in ``benchmarks/results``.

    python -m benchmarks [--quick] [--only raw,quiet] [--json FILE]

    BENCH_HISTORY=10000000   number of finished runs in the benchmark of the history
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.contestant_setup import CONTESTANTS
from benchmarks.environments import ROOT, mariadb_driver, versions
from benchmarks.report import ROWS, table

RESULTS = ROOT / "benchmarks" / "results"
TIMEOUT = 30 * 60.0
DCRON_PACKAGES = ("django-dcron", "django", "celery", "kombu", "redis", "psycopg", "croniter")


class Measure(NamedTuple):
    name: str
    module: str
    full: str
    quick: str
    database: str = "postgresql"


OTHER_SCHEDULERS = ("django-celery-beat", "celery-redbeat", "apscheduler")
BURSTS = " ".join(
    [
        *(f"{name}:{jobs}" for name in OTHER_SCHEDULERS for jobs in (1_000, 10_000)),
        *3 * ["dcron:1000 dcron:10000 dcron:10000:2 dcron:50000 dcron:100000"],
    ]
)
"""django-dcron's bursts are repeated. The other schedulers' times are many times greater."""
QUICK_BURSTS = "dcron:1000 django-celery-beat:1000 celery-redbeat:1000 apscheduler:1000 dcron:10000"
HISTORY = os.environ.get("BENCH_HISTORY", "")

MEASURES = (
    Measure("bursts", "burst", BURSTS, QUICK_BURSTS),
    Measure("sustained", "sustained", "", "--jobs 1000 --minutes 2"),
    Measure("raw", "raw", "", ""),
    Measure("claim, postgresql", "claim", "", "--jobs 6000 --rounds 1"),
    Measure("claim, sqlite", "claim", "", "--jobs 6000 --rounds 1", "sqlite"),
    Measure("claim, mariadb", "claim", "", "--jobs 6000 --rounds 1", "mariadb"),
    Measure("quiet", "quiet", "", "--seconds 10"),
    Measure("idle", "idle", "", "--jobs 20000 --seconds 10"),
    Measure("idle, 1,000,000 jobs", "idle", "--jobs 1000000", "--jobs 50000 --seconds 10"),
    Measure("edit", "edit", "", "--edits 6"),
    Measure("save, postgresql", "save", "--jobs 2000", "--jobs 1000 --rounds 1"),
    Measure("save, sqlite", "save", "--jobs 2000", "--jobs 1000 --rounds 1", "sqlite"),
    Measure("worker", "worker", "", "--messages 500 --rounds 1"),
    Measure("coroutines", "coroutines", "", "--runs 100 --rounds 1"),
    Measure("history", "history", f"--runs {HISTORY or 1_000_000}", f"--runs {HISTORY or 100_000}"),
    Measure("stages", "stages", "--jobs 10000", "--jobs 4000"),
)
assert [measure.name for measure in MEASURES] == list(ROWS)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run smaller measures; their figures are too rough to publish",
    )
    parser.add_argument(
        "--only", default="", help="run only these measures, separated by commas, such as edit,save"
    )
    parser.add_argument(
        "--json",
        type=Path,
        help="write the results to this file (default: benchmarks/results/<date>.json)",
    )
    options = parser.parse_args()
    began = time.monotonic()
    only = options.only.split(",") if options.only else []
    measures: dict[str, Any] = {}
    for measure in MEASURES:
        if not only or measure.module in only:
            _log(began, measure.name)
            measures[measure.name] = _run(measure, measure.quick if options.quick else measure.full)
    results = {**dict(_circumstances()), "quick": options.quick, "measures": measures}
    file = options.json or RESULTS / f"{results['date'][:10]}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(results, indent=2) + "\n")
    _log(began, "done")
    print(f"\n{results['date'][:10]}, {results['machine']}\n")
    print(table(measures))
    return int(
        any(isinstance(figures, dict) and "error" in figures for figures in measures.values())
    )


def _log(began: float, what: str) -> None:
    print(f"[{time.monotonic() - began:4.0f} s] {what}", file=sys.stderr, flush=True)


def _run(measure: Measure, options: str) -> Any:
    """Return the figures or the error. An error doesn't stop the other measures."""
    env = {
        **os.environ,
        "DCRON_TEST_DATABASE": measure.database,
        "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
    }
    env.setdefault("PYTHONWARNINGS", "ignore:XDG_RUNTIME_DIR")  # from the embedded PostgreSQL
    try:
        if measure.database == "mariadb" and (driver := mariadb_driver()):
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(driver), env.get("PYTHONPATH"))))
        with tempfile.TemporaryDirectory() as directory:
            written = Path(directory) / "figures.json"
            command = [
                sys.executable,
                "-m",
                f"benchmarks.{measure.module}",
                *options.split(),
                "--json",
                written,
            ]
            done = subprocess.run(command, cwd=ROOT, env=env, timeout=TIMEOUT)
            if done.returncode:
                return {"error": f"python -m benchmarks.{measure.module} failed, see above"}
            return json.loads(written.read_text())
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return {"error": str(error)}


def _circumstances() -> Iterator[tuple[str, Any]]:
    yield "date", datetime.now(UTC).isoformat(timespec="seconds")
    yield "machine", ", ".join(_machine())
    of_dcron = {"python": platform.python_version(), **versions(sys.executable, DCRON_PACKAGES)}
    of_contestants = {
        contestant.name: versions(
            contestant.python, (*contestant.packages, "celery", "kombu", "redis")
        )
        for contestant in CONTESTANTS.values()
        if contestant.is_made
    }
    yield "versions", {"django-dcron": of_dcron, **of_contestants}


def _machine() -> Iterator[str]:
    yield (
        f"{os.cpu_count()} cores (shared), {platform.machine()}, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    )
    yield f"{platform.system()}, Python {platform.python_version()}"
    yield f"load {os.getloadavg()[2]:.1f} in the last 15 minutes"


if __name__ == "__main__":
    sys.exit(main())
