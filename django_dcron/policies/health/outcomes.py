"""Problems with outcomes: failing jobs, pauses, invalid jobs, overlong runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django_dcron.policies.health.facts import (
    FAILURES_UNTIL_WARNING,
    NAMES_LISTED,
    NamedCount,
    SystemFacts,
    WaitingRuns,
)
from django_dcron.policies.health.problems import (
    Issue,
    ListedProblem,
    Problem,
    Severity,
    age_text,
    bounded_number,
    issues_of_lists,
)
from django_dcron.utils.messages import TranslatableText, any_of, ngettext
from django_dcron.utils.messages import gettext_noop as _

BACKLOG_FROM = 3
BACKLOG_AFTER = timedelta(minutes=2)
"""Runs of a job are a backlog if so many wait, and the oldest has been due for so long."""
FREEZE_REPORTED_AFTER = timedelta(hours=1)
"""A freeze without an end that lasts so long may have been forgotten."""
_FAILING = {
    Problem.JOBS_FAILING: ListedProblem(
        "jobs",
        lambda facts: facts.keep_failing,
        _("Failing jobs that need attention: %(jobs)s."),
        _("Open the latest failed runs of these jobs and fix the cause."),
    ),
}
_STOPPED_JOBS = {
    Problem.QUARANTINED: ListedProblem(
        "jobs",
        lambda facts: facts.quarantined,
        _("Quarantined jobs, which aren't scheduled because of a problem: %(jobs)s."),
        _("Open each job and fix the problem shown there."),
        Severity.ERROR,
    ),
    Problem.JOB_AUTO_PAUSED: ListedProblem(
        "jobs",
        lambda facts: facts.auto_paused,
        _("Jobs paused automatically after repeated failures: %(jobs)s."),
        _("Fix the cause, then resume the jobs."),
    ),
}


def outcome_issues(facts: SystemFacts) -> Iterator[Issue]:
    ran_lately = facts.ran_lately - facts.muted_lately
    every_run_fails = (
        ran_lately > 0
        and facts.failed_lately.number - facts.muted_lately == ran_lately
        and facts.failures_lately >= FAILURES_UNTIL_WARNING
    )
    if every_run_fails:
        yield _every_run_fails(facts, ran_lately)
    else:
        yield from issues_of_lists(facts, _FAILING)
    yield from issues_of_lists(facts, _STOPPED_JOBS)
    if facts.user_pauses:
        yield _all_jobs_paused(facts)
    yield from _freezes_without_end(facts)
    if facts.unknown_targets:
        yield _unknown_targets(facts)
    if facts.long_runs:
        yield _long_runs(facts)


def _every_run_fails(facts: SystemFacts, jobs: int) -> Issue:
    """``jobs``: how many jobs ran lately, without those that only fail with muted incidents."""
    if facts.muted_lately:
        summary = ngettext(
            "Every run fails: the latest run of the %(jobs)s job that ran in the last hour failed. "
            "Jobs that only fail with muted incidents aren't counted.",
            "Every run fails: the latest runs of all %(jobs)s jobs that ran in the last hour "
            "failed. Jobs that only fail with muted incidents aren't counted.",
            jobs,
            jobs=bounded_number(jobs),
        )
    else:
        summary = ngettext(
            "Every run fails: the latest run of the %(jobs)s job that ran in the last hour failed.",
            "Every run fails: the latest runs of all %(jobs)s jobs that ran in the last hour "
            "failed.",
            jobs,
            jobs=bounded_number(jobs),
        )
    remedy = TranslatableText(_("Open the latest failed runs and look for a common cause."))
    if facts.keep_failing.names:
        remedy = TranslatableText(
            _("Open the latest failed runs and look for a common cause. Failing jobs: %(names)s."),
            names=facts.keep_failing.listed,
        )
    return Issue(
        Problem.EVERY_RUN_FAILS,
        Severity.ERROR,
        summary,
        remedy,
        None,
        {"jobs": jobs, "failures": facts.failures_lately},
        facts.keep_failing,
    )


def resume_command(reason: str, namespace: str) -> str:
    """Return the arguments of ``dcron`` that resume the jobs with the reason.

    ``namespace``: that of the jobs; empty for all namespaces.
    """
    arguments = ["--namespace", namespace] if namespace else []
    return shlex.join(["resume", *arguments, "--reason", reason])


def _all_jobs_paused(facts: SystemFacts) -> Issue:
    """Return a warning, because a system whose users have forgotten their pauses looks healthy."""
    number = sum(each.number for each in facts.user_pauses)
    since, reason = min(each.since for each in facts.user_pauses), facts.user_pauses[0].reason
    values = {
        "paused": bounded_number(number),
        "jobs": bounded_number(facts.jobs),
        "age": age_text(facts.now - since),
    }
    if reason:
        summary = TranslatableText(
            _(
                "No job is enabled. Jobs paused by users: %(paused)s of %(jobs)s, the first "
                "%(age)s ago. Most frequent reason: “%(reason)s”."
            ),
            reason=reason,
            **values,
        )
        remedy = TranslatableText(
            _("To resume the jobs with this reason: manage.py dcron %(command)s"),
            command=resume_command(reason, facts.namespace),
        )
    else:
        summary = TranslatableText(
            _(
                "No job is enabled. Jobs paused by users: %(paused)s of %(jobs)s, the first "
                "%(age)s ago."
            ),
            **values,
        )
        remedy = TranslatableText(_("Resume the jobs that should run."))
    figures = {"jobs": facts.jobs, "paused": number}
    return Issue(Problem.ALL_JOBS_PAUSED, Severity.WARNING, summary, remedy, since, figures)


def backlog_issues(facts: SystemFacts) -> Iterator[Issue]:
    """Yield a warning if runs of a job pile up, because they wait for its earlier runs.

    Runs that a freeze holds back don't count.
    """
    late = [each for each in facts.waiting_runs if _is_backlog(each, facts.now)]
    if not late or facts.freezes:
        return
    first, number = late[0], sum(each.number for each in late)
    since = min(each.since for each in late)
    named = NamedCount(len(late), tuple(each.job for each in late if each.job)[:NAMES_LISTED])
    values: dict[str, Any] = {"runs": bounded_number(number), "age": age_text(facts.now - since)}
    remedy = TranslatableText(
        _("Shorten the runs, run the jobs less often, or cancel the runs that wait.")
    )
    if len(late) == 1 and first.job:
        summary = TranslatableText(
            _("%(runs)s runs of %(job)s wait for earlier runs of the job, the oldest for %(age)s."),
            job=first.job,
            **values,
        )
        remedy = TranslatableText(
            _(
                "Shorten the runs, run the job less often, or drop the backlog: manage.py dcron "
                "%(command)s"
            ),
            command=shlex.join(["cancel", first.job, "--state", "waiting"]),
        )
    else:
        summary = TranslatableText(
            _(
                "Jobs whose runs pile up, because they wait for earlier runs of their job: "
                "%(jobs)s. Waiting runs: %(runs)s, the oldest for %(age)s."
            ),
            jobs=named.listed,
            **values,
        )
    figures = {"jobs": len(late), "runs": number}
    yield Issue(Problem.JOB_BACKLOG, Severity.WARNING, summary, remedy, since, figures, named)


def _is_backlog(waiting: WaitingRuns, now: datetime) -> bool:
    return waiting.number >= BACKLOG_FROM and now - waiting.since > max(
        BACKLOG_AFTER, waiting.grace
    )


def _freezes_without_end(facts: SystemFacts) -> Iterator[Issue]:
    """Yield a warning if somebody may have forgotten to end a freeze."""
    endless = [each for each in facts.freezes if each.until is None]
    forgotten = [each for each in endless if facts.now - each.since >= FREEZE_REPORTED_AFTER]
    if not forgotten:
        return
    first = min(forgotten, key=lambda freeze: freeze.since)
    values = {"age": age_text(facts.now - first.since)}
    summary = TranslatableText(
        _("Scheduling has been frozen for %(age)s, and the freeze has no end."), **values
    )
    if first.reason:
        summary = TranslatableText(
            _(
                "Scheduling has been frozen for %(age)s, and the freeze has no end. Reason: "
                "“%(reason)s”."
            ),
            reason=first.reason,
            **values,
        )
    remedy = TranslatableText(_("End the freeze, or give it an end."))
    figures = {"freezes": len(forgotten)}
    yield Issue(Problem.FREEZE_WITHOUT_END, Severity.WARNING, summary, remedy, first.since, figures)


def _unknown_targets(facts: SystemFacts) -> Issue:
    """Return a warning: only this process is known to lack the targets, not the workers."""
    listed = facts.unknown_targets.listed
    process = {"pid": str(facts.pid), "host": facts.host} if facts.host else {}
    if not process:
        text = _("A process of the site doesn't know these targets of enabled jobs: %(targets)s.")
    elif facts.serves_requests:
        text = _(
            "The web process with PID %(pid)s on host %(host)s doesn't know these targets of "
            "enabled jobs: %(targets)s."
        )
    else:
        text = _(
            "The process with PID %(pid)s on host %(host)s doesn't know these targets of enabled "
            "jobs: %(targets)s."
        )
    if facts.lacks_task_modules:
        remedy = TranslatableText(
            _("Some task modules can't be imported in this process: fix the error in its log.")
        )
    elif facts.similar_targets:
        remedy = TranslatableText(
            _(
                "Restart the process if it runs older code. Otherwise, correct the jobs that "
                "manage.py dcron doctor lists. Did you mean %(near)s?"
            ),
            near=any_of([repr(target) for target in facts.similar_targets]),
        )
    else:
        remedy = TranslatableText(
            _(
                "Restart the process if it runs older code. Otherwise, correct or pause the jobs "
                "that manage.py dcron doctor lists."
            )
        )
    return Issue(
        Problem.UNKNOWN_TARGET,
        Severity.WARNING,
        TranslatableText(text, **process, targets=listed),
        remedy,
        None,
        {"targets": facts.unknown_targets.number},
        facts.unknown_targets,
    )


def _long_runs(facts: SystemFacts) -> Issue:
    worst = max(facts.long_runs, key=lambda run: run.lasts)
    names = tuple(dict.fromkeys(run.job for run in facts.long_runs if run.job))
    values: dict[str, Any] = {
        "runs": NamedCount(len(facts.long_runs), names).listed,
        "lasts": age_text(worst.lasts),
    }
    if worst.usual is None:
        summary = TranslatableText(
            _(
                "Runs that take too long: %(runs)s. The longest has run for %(lasts)s, has no "
                "timeout, and keeps later runs of its job from starting."
            ),
            **values,
        )
    else:
        summary = TranslatableText(
            _(
                "Runs that take too long: %(runs)s. The longest has run for %(lasts)s instead of "
                "at most %(usual)s."
            ),
            usual=age_text(worst.usual),
            **values,
        )
    remedy = _(
        "Check the logs of these runs, and cancel the runs if they hang. If they don't end then, "
        "restart the process that executes them."
    )
    if any(run.usual is None for run in facts.long_runs):
        remedy = _(
            "Check the logs of these runs, and cancel the runs if they hang. If they don't end "
            "then, restart the process that executes them. Set a timeout for jobs that may hang."
        )
    return Issue(
        Problem.RUN_OVERLONG,
        Severity.WARNING,
        summary,
        TranslatableText(remedy),
        facts.now - worst.lasts,
        {"runs": len(facts.long_runs)},
        NamedCount(len(facts.long_runs), names),
    )
