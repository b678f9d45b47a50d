"""Every command line of the README and the docs is valid, and those of ``dcron`` are executed."""

import re
import shlex
from argparse import ArgumentError
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, get_commands, load_command_class
from pytest_django import Settings

from django_dcron import control
from django_dcron.management.commands.dcron import SUBCOMMANDS
from django_dcron.management.dcron.lookup import find_job
from django_dcron.models import Attempt, Job, Run
from django_dcron.testing import set_clock
from tests.contrib.test_ics import file_of
from tests.docs.test_documents import ROOT
from tests.factories import make_job
from tests.management.calling import call

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```+(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
NOT_SHELL = {"python", "yaml", "toml", "json", "nginx", "mermaid", "html"}
COMMAND = re.compile(r"(?:^|[ /])manage\.py ([a-z_]+)(?: (?! )(.*?))?(?=   |$| \|\| | && | >)")
INLINE = re.compile(
    r"`(?:python )?(?:manage\.py (?!dcron)([a-z_]+)|(?:manage\.py )?dcron)(?: ([^`]+))?`"
)

PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b|\.\.\.|…")
"""Such as SOURCE."""

OTHER_DATABASE = "scheduler"
"""The alias of the docs' second database."""
OTHER_PACKAGES = {"db_worker", "prune_db_task_results", "crontab", "celery"}
"""Commands of packages that aren't installed here."""
NOT_EXECUTED = {
    "alert": "sends a message; tests/contrib/alerts does",
    "start": "starts a process; tests/management/test_daemon.py does",
    "stop": "see start",
    "restart": "see start",
    "state": "see start",
    "import redbeat": "needs RedBeat's entries; tests/contrib/importers has them",
    "import huey": "needs an app of Huey; tests/contrib/importers has it",
    "import django-crontab": "needs its setting; tests/contrib/importers has it",
    "import django-celery-beat": "needs the package's tables; tests/contrib/importers has them",
    "handover": "needs the package's tables; tests/contrib/importers/test_handover.py has them",
}
MAY_BE_NEGATIVE = {"doctor", "health", "nodes", "sync"}
"""Subcommands whose exit code 1 is an answer: no node is running here."""
NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
ANY_ID = "01900000000070008000000000000000"
CRONTAB = "30 3 * * * close-day --tax\n"


@dataclass(frozen=True)
class DocumentedCommand:
    page: str
    name: str
    arguments: str

    def __str__(self) -> str:
        return f"{self.page}: {self.name} {self.arguments}"

    @property
    def words(self) -> list[str]:
        return shlex.split(self.arguments)


def in_blocks() -> Iterator[DocumentedCommand]:
    for page in PAGES:
        for _indent, language, block in BLOCK.findall(page.read_text()):
            if language in NOT_SHELL or "──" in block:  # a drawing
                continue
            for line in block.replace("\\\n", " ").splitlines():
                for name, arguments in COMMAND.findall(line):
                    yield DocumentedCommand(str(page.relative_to(ROOT)), name, arguments.strip())


def in_sentences() -> Iterator[DocumentedCommand]:
    for page in PAGES:
        for name, arguments in INLINE.findall(page.read_text()):
            yield DocumentedCommand(str(page.relative_to(ROOT)), name or "dcron", arguments)


BLOCKS = list(dict.fromkeys(in_blocks()))
SENTENCES = list(dict.fromkeys(in_sentences()))
DCRON_COMMANDS = [command for command in BLOCKS if command.name == "dcron"]


def parse(command: DocumentedCommand) -> None:
    package = get_commands()[command.name]
    loaded = load_command_class(package, command.name) if isinstance(package, str) else package
    words = ["default" if word == OTHER_DATABASE else word for word in command.words]
    loaded.create_parser("manage.py", command.name).parse_args(words)


def test_commands_are_found() -> None:
    assert len(BLOCKS) > 60
    assert len(SENTENCES) > 40
    assert {"README.md", "docs/reference/cli.md"} < {command.page for command in BLOCKS}


@pytest.mark.parametrize("command", BLOCKS, ids=str)
def test_command_line_of_a_code_block_is_valid(command: DocumentedCommand) -> None:
    if command.name not in OTHER_PACKAGES:
        parse(command)


@pytest.mark.parametrize("command", SENTENCES, ids=str)
def test_command_in_a_sentence_is_valid(command: DocumentedCommand) -> None:
    """A sentence may name a subcommand alone, without the arguments that it needs."""
    if command.name in OTHER_PACKAGES:
        return
    if command.name == "dcron" and len(command.words) < 2:
        assert {*command.words} <= {*SUBCOMMANDS}
        return
    if command.words == ["SUBCOMMAND", "--help"]:
        return
    try:
        parse(command)
    except (CommandError, ArgumentError) as error:
        if not PLACEHOLDER.search(command.arguments):
            raise AssertionError(command) from error


# --- Execution ------------------------------------------------------------------------------------


def why_not_executed(command: DocumentedCommand) -> str:
    return next(
        (why for prefix, why in NOT_EXECUTED.items() if command.arguments.startswith(prefix)), ""
    )


COMPLETE_SENTENCES = [
    command
    for command in SENTENCES
    if command.name == "dcron"
    and len(command.words) > 1
    and command.arguments not in {each.arguments for each in DCRON_COMMANDS}
    and not PLACEHOLDER.search(command.arguments)
]
EXECUTED = [
    command for command in DCRON_COMMANDS + COMPLETE_SENTENCES if not why_not_executed(command)
]


def test_each_exception_to_execution_matches_a_command() -> None:
    for prefix in NOT_EXECUTED:
        commands = DCRON_COMMANDS + COMPLETE_SENTENCES
        assert any(command.arguments.startswith(prefix) for command in commands), prefix
    assert len(EXECUTED) > 45


NAMES = sorted(
    {
        *("nightly-report", "import-orders", "imports", "invoices", "stocktake", "order_flour"),
        *("bake_bread", "bake_cake", "send_payment_reminders", "shop/import-orders"),
        "shop/sync-stock",
    }
)


def make_documented_jobs() -> None:
    """Create the jobs that the docs name."""
    jobs = []
    for label in NAMES:
        namespace, _, name = label.rpartition("/")
        job = Job(name=name, namespace=namespace or "default", target="tests.app.tasks.echo")
        job.schedule, job.tags = "30 3 * * *", ["billing"]
        jobs.append(job)
    control.save_many(jobs)


def make_documented_run(prefix: str, state: str) -> None:
    """Create the run whose id begins like this, with two attempts."""
    digits = prefix.replace("-", "")
    run_id = UUID(digits + ANY_ID[len(digits) :])
    at = NOW - timedelta(hours=1)
    job = Job.objects.get(name="nightly-report")
    times = {"scheduled_at": at, "due_at": at, "claimed_at": at, "started_at": at}
    run = Run.objects.create(id=run_id, job=job, state=state, attempt=2, **times)
    for number in (1, 2):
        Attempt.objects.create(run=run, number=number, token=uuid4(), worker="w", started_at=at)


def make_documented_edits(words: list[str]) -> None:
    """Edit the job of the command up to the version that the command reverts."""
    job = find_job(words[1])
    version = int(words[words.index("--version") + 1]) if "--version" in words else 2
    while job.version < version:
        job.max_attempts += 1
        control.save(job)


def prepare(command: DocumentedCommand) -> list[str]:
    """Create what the command needs. Return its words."""
    words = command.words
    make_documented_jobs()
    for prefix in re.findall(r"\b01[0-9a-f]{6}-[0-9a-f-]{4,}", command.arguments):
        make_documented_run(prefix, "pending" if words[0] == "cancel" else "failed")
    if words[:2] == ["cancel", "--namespace"]:
        job = Job.objects.filter(namespace=words[2])[0]
        Run.objects.create(job=job, state="running", scheduled_at=NOW, due_at=NOW, claimed_at=NOW)
    if "--source" in words:
        source = words[words.index("--source") + 1]
        Job.objects.filter(name="nightly-report").update(import_source=source, import_key="1")
    if words[0] == "unfreeze":
        reason = words[words.index("--reason") + 1] if "--reason" in words else "deploy"
        control.freeze(reason, words[2] if "--namespace" in words else None)
    if words[0] == "resume":
        reason = words[words.index("--reason") + 1] if "--reason" in words else "deploy"
        control.pause_many(Job.objects.all(), reason)
    if words[0] in ("pause", "resume") and {"--all", "--source"} & {*words}:
        return [*words, *([] if {"--yes", "--dry-run"} & {*words} else ["--yes"])]
    if words[0] == "delete" and words[1] not in NAMES:
        make_job(name=words[1])
    if words[0] == "revert":
        make_documented_edits(words)
    if words[0] in ("run", "backfill") and not {"--no-wait", "--dry-run"} & {*words}:
        without_timeout = re.sub(r" --timeout \S+", "", command.arguments)
        confirmed = ["--yes"] if "--all" in words and "--yes" not in words else []
        return [*shlex.split(without_timeout), "--no-wait", *confirmed]  # no node runs here
    if words[0] == "import":
        Path("crontab.txt").write_text(CRONTAB)
        Path("jobs.yaml").write_text(call("export", "--format", "yaml").out)
    if words[0] == "calendar":
        Path("windows.ics").write_bytes(file_of("DTSTART;VALUE=DATE:20261224"))
        return ["windows.ics" if word == "-" else word for word in words]
    return words


@pytest.mark.django_db
@pytest.mark.parametrize("command", EXECUTED, ids=str)
def test_documented_command_can_be_executed(
    command: DocumentedCommand,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.DCRON_DISPATCHER = "thread"
    settings.DCRON_SHELL = {"close-day": ["/bin/sh", "-c", "close-day --tax"]}
    monkeypatch.chdir(tmp_path)
    with set_clock(NOW):
        done = call(*prepare(command))
    negative = {1} if command.words[0] in MAY_BE_NEGATIVE else set()
    assert done.code in {0} | negative, done.err
