"""The problems a health verdict can report: codes, severities and issues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from django_dcron.policies.health.facts import NOTHING_NAMED, NamedCount, SystemFacts
from django_dcron.utils.messages import Language, LocalizedNumber, TranslatableText
from django_dcron.utils.messages import gettext_noop as _

MAX_COUNTED = 10_000
"""Rows are counted up to this number. Larger numbers are reported as "more than"."""


class Severity(StrEnum):
    ERROR = "error"
    """A guarantee is broken, or work isn't being done."""
    WARNING = "warning"
    """Work is done, but something needs attention."""


class Problem(StrEnum):
    """Stable codes, most urgent first."""

    DATABASE_READ_ONLY = "database_read_only"
    NO_LIVE_NODE = "no_live_node"
    NODE_STALLED = "node_stalled"
    NAMESPACE_UNSERVED = "namespace_unserved"
    NO_SHARD_LED = "no_shard_led"
    NO_BROKER = "no_broker"
    RUN_UNKNOWN_TO_WORKER = "run_unknown_to_worker"
    TASK_UNKNOWN_TO_WORKER = "task_unknown_to_worker"
    NO_WORKER = "no_worker"
    QUEUE_UNSERVED = "queue_unserved"
    WORKERS_BEHIND = "workers_behind"
    QUEUE_STALLED = "queue_stalled"
    CURSOR_OVERDUE = "cursor_overdue"
    RUN_OVERDUE = "run_overdue"
    RUN_STUCK = "run_stuck"
    BROKER_UNREACHABLE = "broker_unreachable"
    NODE_DEGRADED = "node_degraded"
    EVERY_RUN_FAILS = "every_run_fails"
    QUARANTINED = "quarantined"
    UNKNOWN_TARGET = "unknown_target"
    JOBS_FAILING = "jobs_failing"
    JOB_AUTO_PAUSED = "job_auto_paused"
    ALL_JOBS_PAUSED = "all_jobs_paused"
    FREEZE_WITHOUT_END = "freeze_without_end"
    RUN_OVERLONG = "run_overlong"
    JOB_BACKLOG = "job_backlog"
    CLOCK_IN_DOUBT = "clock_in_doubt"
    NODE_SKEWED = "node_skewed"
    SHARDS_DIFFER = "shards_differ"
    NAMESPACES_OVERLAP = "namespaces_overlap"
    VERSIONS_DIFFER = "versions_differ"


@dataclass(frozen=True, slots=True)
class Issue:
    """One problem, with its remedy."""

    problem: Problem
    severity: Severity
    summary: TranslatableText
    """What is wrong, in one sentence."""
    remedy: TranslatableText
    """What to do, in one sentence."""
    since: datetime | None = None
    figures: dict[str, int] = field(default_factory=dict)
    named: NamedCount = NOTHING_NAMED
    """The nodes, jobs, namespaces, queues or workers that the problem is about, if any."""

    def translate(self, language: Language) -> str:
        return f"{self.summary.translate(language)} {self.remedy.translate(language)}"

    def __str__(self) -> str:
        return f"{self.summary} {self.remedy}"


FIND_UNLED_SHARDS = _(
    "Run manage.py dcron doctor to find shards without a leader, and check the nodes' logs."
)
"""The remedy of problems that a shard without a leader may have caused."""


# --- problems of listed things --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListedProblem:
    """A problem that is a list in the facts: its summary names the items, a figure counts them."""

    things: str
    """The name of the figure, and of the list in the summary."""
    listed: Callable[[SystemFacts], NamedCount]
    summary: str
    remedy: str
    severity: Severity = Severity.WARNING


def issues_of_lists(facts: SystemFacts, listings: dict[Problem, ListedProblem]) -> Iterator[Issue]:
    """Yield an issue for each problem whose list isn't empty."""
    for problem, listing in listings.items():
        if named := listing.listed(facts):
            summary = TranslatableText(listing.summary, **{listing.things: named.listed})
            figures = {listing.things: named.number}
            yield Issue(
                problem,
                listing.severity,
                summary,
                TranslatableText(listing.remedy),
                None,
                figures,
                named,
            )


# --- wording --------------------------------------------------------------------------------------


def age_text(age: timedelta) -> TranslatableText:
    """Format an age coarsely, so that a sentence refreshed every few seconds rarely changes."""
    seconds = max(int(age.total_seconds()), 0)
    if seconds < 120:
        return TranslatableText(
            _("%(number)d s"), number=seconds if seconds < 5 else seconds // 5 * 5
        )
    if seconds < 7200:
        return TranslatableText(_("%(number)d min"), number=seconds // 60)
    if seconds < 48 * 3600:
        return TranslatableText(_("%(number)d h"), number=seconds // 3600)
    return TranslatableText(_("%(number)d days"), number=seconds // 86400)


def bounded_number(value: int) -> TranslatableText:
    """Return the number, or ``more than 10,000``."""
    if value <= MAX_COUNTED:
        return LocalizedNumber(value)
    return TranslatableText(_("more than %(limit)s"), limit=LocalizedNumber(MAX_COUNTED))
