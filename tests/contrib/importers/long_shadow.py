"""Import django-celery-beat jobs as shadows while beat runs, and compare both schedulers.

docs/contributing/imports.md quotes the results.

    python -m tests.contrib.importers.long_shadow --tasks 1000 --minutes 10

All parts are real: PostgreSQL (or DCRON_TEST_DATABASE), Redis, `celery beat` with its
DatabaseScheduler, a worker, a node, and the two import commands. At the end, `dcron import
--report` and the stricter comparison of `beside_beat` must find no difference, and the worker must
have executed exactly what beat has sent. Exit code 1: there is a difference.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.contrib.importers.beat_rows import Kind, Window
    from tests.contrib.importers.beside_beat import Compared
    from tests.services import Process

os.environ.setdefault("DCRON_TEST_DATABASE", "postgresql")
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.contrib.importers.beat_settings"
os.environ.pop("DCRON_TEST_REDIS", None)

SOURCE = "django-celery-beat"
CELERY = ("-m", "celery", "-A", "tests.celery_app")
SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
LAST_MESSAGES_WAIT = timedelta(seconds=60)
"""Time to wait for beat's last messages."""


@dataclass(slots=True)
class CommandResult:
    code: int
    out: str
    err: str


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    # Otherwise, the started processes would outlive this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with database_and_redis():
        return compare_with_beat(options.tasks, timedelta(minutes=options.minutes))


@contextmanager
def database_and_redis() -> Iterator[None]:
    import django
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connections

    from tests import services

    settings.DIRECTORY.mkdir(mode=0o700)
    servers = [services.redis_server()]
    try:
        servers[0].start()
        if database := services.start_database_server():
            servers.append(database)
        django.setup()
        call_command("migrate", verbosity=0)
        yield
    finally:
        connections.close_all()
        services.stop_all(servers)
        shutil.rmtree(settings.DIRECTORY, ignore_errors=True)


@dataclass(slots=True)
class Watched:
    """The imported rows, the import's report and the processes that run the jobs."""

    kinds: dict[str, Kind]
    imported: dict[str, Any]
    window: Window
    beat: Process
    worker: Process

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome of the import for each row."""
        return {origin_name(each["origin"]): each["outcome"] for each in self.imported["jobs"]}

    def compared(self) -> dict[str, Compared]:
        from tests.contrib.importers import beside_beat

        jobs = [each for each in self.imported["jobs"] if each["outcome"] == "create"]
        names = {origin_name(each["origin"]): each["name"] for each in jobs}
        return beside_beat.by_row(names, self.beat.log, self.window.begin, self.window.end)

    def is_clean(self) -> bool:
        return all(each.is_clean for each in self.compared().values())

    def runs(self) -> Any:
        """Return the scheduled runs within the window."""
        from django_dcron.models import Run
        from django_dcron.policies.lifecycle import Trigger

        edges = {"scheduled_at__gte": self.window.begin, "scheduled_at__lt": self.window.end}
        return Run.objects.filter(trigger=Trigger.SCHEDULE, **edges)

    def all_runs_ended(self) -> bool:
        from django_dcron.policies.lifecycle import UNFINISHED

        return not self.runs().filter(state__in=UNFINISHED).exists()


def compare_with_beat(tasks: int, length: timedelta) -> int:
    from tests import services
    from tests.contrib.importers.beat_rows import QUEUES, Window, fill
    from tests.waiting import wait_until

    beat = python_process(
        "beat", *CELERY, "beat", "--scheduler", SCHEDULER, "--loglevel", "INFO", "--pidfile", ""
    )
    queues = ",".join(QUEUES)
    worker = python_process(
        "worker", *CELERY, "worker", "--concurrency", "2", "--loglevel", "INFO", "-Q", queues
    )
    node = python_process("node", "-m", "django", "runcron", "--name", "node")
    processes = [worker, beat, node]
    try:
        for process in processes:
            process.start()
        worker.wait_for_log(" ready.", 120)
        beat.wait_for_log("beat: Starting...", 120)
        # This is enough time to create and import all rows.
        begin = now() + timedelta(seconds=45 + 0.25 * tasks)
        window = Window(begin, begin + length)
        kinds = fill(tasks, window)
        say(f"{tasks} rows of {SOURCE}, observed from {clock(begin)} for {length}")
        imported = json.loads(manage("import", SOURCE, "--apply", "--shadow", "--json").out)
        say(f"imported as shadows by {clock(now())}: {counts_text(imported['counts'])}")
        window = Window(max(begin, now()), window.end)
        watched = Watched(kinds, imported, window, beat, worker)
        limit = length.total_seconds() + 600
        wait_until(lambda: now() >= window.end, limit, what="the window's end", interval=0.5)
        last = window.end + LAST_MESSAGES_WAIT
        wait_until(
            lambda: watched.is_clean() or now() >= last,
            600,
            what="beat's last messages",
            interval=1,
        )
        beat.stop()  # It writes its latest runs when it stops, otherwise every three minutes.
        since = window.begin.isoformat()
        reported = manage("import", SOURCE, "--report", "--since", since, "--at-least", "0")
        wait_until(watched.all_runs_ended, 300, what="the end of all runs", interval=1)
        wait_until(
            lambda: executed(worker) >= beat_sent(beat),
            300,
            what="the end of all tasks",
            interval=1,
        )
        for process in (worker, node):
            assert process.running, f"{process.name} has ended:\n{process.log[-5000:]}"
        return summary(watched, reported)
    finally:
        services.stop_all(processes)


def python_process(name: str, *arguments: str) -> Process:
    from tests import services

    env = {"DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"], "TZ": "UTC"}
    return services.python_process(name, *arguments, env=env)


def manage(*arguments: str) -> CommandResult:
    """Run ``manage.py dcron`` in a process, as a user would."""
    process = python_process("", "-m", "django", "dcron", *arguments)
    done = subprocess.run(
        process.command, env=process.env, capture_output=True, text=True, timeout=600
    )
    if done.returncode not in (0, 1):
        raise SystemExit(
            f"dcron {' '.join(arguments)} ended with "
            f"{done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
    return CommandResult(done.returncode, done.stdout, done.stderr)


def summary(watched: Watched, reported: CommandResult) -> int:
    by_row, outcomes = watched.compared(), watched.outcomes
    wrong = [
        f"{row} was {outcomes.get(row)}, not {kind.outcome}"
        for row, kind in watched.kinds.items()
        if outcomes.get(row) != kind.outcome
    ]
    table(watched.kinds, by_row)
    for row, found in by_row.items():
        for kind, at, why in found.differences():
            say(f"only a {kind}: {row} {clock(at)}: {why or 'UNEXPLAINED'}")
    late = sorted(each.total_seconds() for found in by_row.values() for each in found.lateness)
    say(f"beat sent {median_and_maximum(late)} after the occurrence")
    runs = watched.runs()
    states = Counter(runs.values_list("state", flat=True))
    started = runs.filter(started_at__isnull=False).values_list("started_at", "due_at")
    waited = sorted((start - due).total_seconds() for start, due in started)
    say(
        f"runs of shadows: {counts_text(states)}; started {median_and_maximum(waited)} after due_at"
    )
    sent, done = beat_sent(watched.beat), executed(watched.worker)
    say(f"tasks sent by beat: {sent}; executed by the worker: {done}")
    say(f"dcron import {SOURCE} --report, exit code {reported.code}:")
    say(f"{reported.out}{reported.err}".strip())
    for each in wrong:
        say(f"WRONG: {each}")
    clean = watched.is_clean() and not wrong and reported.code == 0 and done == sent
    say("The comparison is clean." if clean else "The comparison is NOT clean.")
    return 0 if clean else 1


def table(kinds: dict[str, Kind], by_row: dict[str, Compared]) -> None:
    say(f"{'kind':32} {'rows':>5} {'jobs':>5} {'same':>6} {'differ':>6} {'late':>9}")
    for kind in dict.fromkeys(kinds.values()):
        rows = [row for row in kinds if kinds[row] is kind]
        line_of(kind.name, len(rows), [by_row[row] for row in rows if row in by_row])
    line_of("all", len(kinds), list(by_row.values()))


def line_of(name: str, rows: int, found: list[Compared]) -> None:
    same = sum(each.same for each in found)
    differing = sum(1 for each in found for _ in each.differences())
    late = max((late.total_seconds() for each in found for late in each.lateness), default=None)
    late_text = "" if late is None else f"{late:7.1f} s"
    say(f"{name:32} {rows:5} {len(found):5} {same:6} {differing:6} {late_text:>9}".rstrip())


def median_and_maximum(seconds: list[float]) -> str:
    return (
        f"{statistics.median(seconds):.1f} s (median), {seconds[-1]:.1f} s (at most)"
        if seconds
        else "never"
    )


def origin_name(origin: str) -> str:
    """Return the row's name from an origin of ``django_dcron.contrib.importers.celery_beat``."""
    return str(ast.literal_eval(origin.removeprefix("periodic task ")))


def beat_sent(beat: Process) -> int:
    """Return how many tasks beat sent that the worker knows."""
    return len(
        re.findall(r"Sending due task .* \(tests\.app\.tasks\.echo\)$", beat.log, re.MULTILINE)
    )


def executed(worker: Process) -> int:
    return len(re.findall(r"Task tests\.app\.tasks\.echo\[[^]]+\] succeeded", worker.log))


def counts_text(counts: Any) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number)


def now() -> datetime:
    return datetime.now(UTC)


def clock(at: datetime) -> str:
    return f"{at:%H:%M:%S.%f}"[:-3]


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
