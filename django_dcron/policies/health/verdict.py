"""Decide the health of the whole system: facts in, a verdict out, without I/O.

The dashboard, the admin index, ``dcron doctor``, ``/health``, the metrics and the alerts show this
verdict.

Invariants:

- An error means that work isn't being done or that every run fails. Most errors come from outcomes:
  runs that nobody starts, occurrences that nobody claims, runs that fail.
- What nodes and workers report about themselves names the cause of an error, or is a warning. It is
  an error only if it shows that work isn't being done.
- A problem that explains another one replaces it.
- A freeze isn't a problem, unless it has no end and lasts for long. The summary names it if there
  are no problems.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from django_dcron.policies.health import nodes, outcomes, workers
from django_dcron.policies.health.facts import SystemFacts
from django_dcron.policies.health.problems import (
    Issue,
    Problem,
    Severity,
    age_text,
    bounded_number,
)
from django_dcron.utils.messages import TranslatableText, ngettext
from django_dcron.utils.messages import gettext_noop as _


class SystemStatus(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    """There are warnings and no errors."""
    UNFIT = "unfit"
    """There are errors."""


@dataclass(frozen=True, slots=True)
class Verdict:
    facts: SystemFacts
    issues: tuple[Issue, ...]
    """Errors first, then warnings, each by urgency."""

    @property
    def status(self) -> SystemStatus:
        if not self.issues:
            return SystemStatus.OK
        return (
            SystemStatus.UNFIT
            if self.issues[0].severity is Severity.ERROR
            else SystemStatus.DEGRADED
        )

    @property
    def summary(self) -> TranslatableText:
        """One sentence for the first line."""
        if self.issues:
            return self.issues[0].summary
        if self.facts.freezes:
            return TranslatableText(
                _("Scheduling is frozen. Freezes: %(freezes)d."), freezes=len(self.facts.freezes)
            )
        if not self.facts.has_work:
            return TranslatableText(_("Healthy: no jobs are enabled, so there is nothing to do."))
        if waiting := self.queue_note:
            return TranslatableText(_("Healthy so far. %(waiting)s"), waiting=waiting)
        if not self.facts.has_outcome:
            return TranslatableText(
                _("No problem found. No run of the current jobs has succeeded or failed yet.")
            )
        if self.names_failed_jobs:
            return TranslatableText(
                _(
                    "Healthy: runs start on time. Jobs that have failed since their last success: "
                    "%(jobs)s."
                ),
                jobs=self.facts.failed_lately.listed,
            )
        if self.facts.enabled_shadows:
            return TranslatableText(
                _(
                    "Healthy: runs start on time. Enabled jobs: %(jobs)s. Shadows among them, "
                    "which execute nothing: %(shadows)s."
                ),
                jobs=bounded_number(self.facts.enabled_jobs),
                shadows=bounded_number(self.facts.enabled_shadows),
            )
        return TranslatableText(
            _("Healthy: runs start and succeed. Running nodes: %(nodes)d."),
            nodes=self.facts.live_nodes,
        )

    @property
    def names_failed_jobs(self) -> bool:
        """Whether ``summary`` is about jobs that failed, although there is no issue."""
        is_about_others = self.issues or self.facts.freezes or self.queue_note
        return bool(self.facts.failed_lately and self.facts.has_work and not is_about_others)

    @property
    def queue_note(self) -> TranslatableText | None:
        """The number of queued runs, if one has waited for a while and none has started meanwhile.

        It is a problem if no run is running, or after ``DCRON_REDELIVER_AFTER``.
        """
        facts, since = self.facts, workers.idle_since(self.facts)
        if facts.last_start is None or since is None:
            return None
        if facts.now - since < workers.IDLE_QUEUE_AFTER:
            return None
        return ngettext(
            "%(number)s run is queued, and the last run started %(age)s ago.",
            "%(number)s runs are queued, and the last run started %(age)s ago.",
            facts.queued,
            number=bounded_number(facts.queued),
            age=age_text(facts.now - facts.last_start),
        )

    @property
    def problems(self) -> frozenset[Problem]:
        return frozenset(issue.problem for issue in self.issues)


def assess(facts: SystemFacts) -> Verdict:
    """Return the verdict on ``facts``."""
    issues = [
        *nodes.database_issues(facts),
        *nodes.node_issues(facts),
        *nodes.dispatch_issues(facts),
        *workers.worker_issues(facts),
        *outcomes.outcome_issues(facts),
        *nodes.configuration_issues(facts),
    ]
    if not any(issue.severity is Severity.ERROR for issue in issues):
        issues += outcomes.backlog_issues(facts)  # an error may be the cause of a backlog
    order = list(Problem)
    ranked = sorted(
        issues,
        key=lambda issue: (issue.severity is not Severity.ERROR, order.index(issue.problem)),
    )
    return Verdict(facts, tuple(ranked))
