"""The texts of alerts. They are in English, like logs, because a whole team reads an alert."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from django.urls import NoReverseMatch, reverse

from django_dcron.conf import settings
from django_dcron.contrib.alerts.failures import LATEST, ReportedFailures
from django_dcron.db.errors import in_one_line
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import cluster
from django_dcron.models import Alert, Attempt, Job, Node, Run
from django_dcron.policies.alerting import EVERY, AlertKind, Event
from django_dcron.policies.health.problems import Issue
from django_dcron.policies.lifecycle import State
from django_dcron.policies.outages import Outage
from django_dcron.utils.counts import number_of
from django_dcron.utils.durations import write_duration
from django_dcron.utils.time_format import format_duration, format_site_time


class AlertContent(NamedTuple):
    subject: str
    text: str | Callable[[], str]
    """The text, or a function that returns it."""


def event_message(event: Event, job: Job, found: ReportedFailures) -> AlertContent:
    """Return the content of the alert about an event. ``found``: the failures that it reports."""
    number = event.number
    match event.rule.on:
        case AlertKind.FAILED if event.rule.after == EVERY:
            return AlertContent(f"{job} failed{_times(number)}", _failure_text(job, found))
        case AlertKind.FAILED:
            in_a_row = f" {number} times in a row" if number > 1 else ""
            return AlertContent(f"{job} failed{in_a_row}", _failure_text(job, found))
        case AlertKind.RECOVERED:
            after = "a failed run" if number == 1 else f"{number} failed runs in a row"
            text = f"It succeeded after {after}."
            return AlertContent(f"{job} has recovered", _job_text(job, State.SUCCEEDED, text))
        case AlertKind.MISSED:
            occurrences = "an occurrence" if number == 1 else f"{number} occurrences"
            return AlertContent(f"{job} missed {occurrences}", _job_text(job, State.MISSED))
        case _:
            text = f"{job.pause_reason}. The job won't run until someone resumes it."
            return AlertContent(
                f"{job} was paused automatically", _job_text(job, State.FAILED, text)
            )


def late_message(run: Run, within: timedelta) -> AlertContent:
    text = (
        f"The run at {format_site_time(run.scheduled_at)} hasn't finished within "
        f"{write_duration(within)}. Its state is {run.state}."
    )
    text = _join_lines(text, run.reason, _link("Run", "run_change", run.pk))
    return AlertContent(f"{run.job} is late", text)


def silence_message(job: Job, since: datetime, span: timedelta) -> AlertContent:
    """Return the content, with a function for the text.

    Each check finds a lasting silence again, but only the first check needs the text, which queries
    the job's runs.
    """
    text = f"No run has succeeded for {write_duration(span)}, since {format_site_time(since)}."
    return AlertContent(
        f"{job} has had no success for {write_duration(span)}",
        lambda: _join_lines(text, _job_text(job, None)),
    )


def node_loss_message(node: Node) -> AlertContent:
    """Return the content, with a function for the text, which counts the live nodes."""
    return AlertContent(f"node {node.name} is lost", lambda: _node_loss_text(node))


def _node_loss_text(node: Node) -> str:
    served = f"namespace {node.namespace}" if node.namespace else "all namespaces"
    serving = [each for each in cluster.nodes() if each.namespace in ("", node.namespace)]
    if live := sum(map(cluster.is_live, serving)):
        remaining = f"Live nodes left that serve {served}: {live}. They take over its jobs."
    else:
        remaining = f"No live node is left that serves {served}."
    return _join_lines(
        f"The last heartbeat of node {node.id} (host {node.host}, process {node.pid}) "
        f"was at {format_site_time(node.heartbeat_at)}.",
        remaining,
        _link("Nodes", "node_changelist"),
    )


def degraded_message(name: str, since: datetime) -> AlertContent:
    text = (
        f"Node {name} hasn't reached the lock server since {format_site_time(since)}. No run "
        "executes twice, but several nodes may do the same scheduling work."
    )
    return AlertContent(f"node {name} is degraded", text)


def unhealthy_message(issue: Issue) -> AlertContent:
    """Return the problem as the subject, and the remedy as the text."""
    text = _join_lines(str(issue.remedy), _link("Dashboard", "dashboard_changelist"))
    return AlertContent(str(issue.summary), text)


def outage_message(node: str, outage: Outage) -> AlertContent:
    """Return the content of the alert about an outage that ``node`` has found."""
    cause = "No node wrote a heartbeat in this time."
    if outage.failure is not None:
        cause = (
            f"Node {node} couldn't write its heartbeat from {format_site_time(outage.failure.at)} "
            f"on: {outage.failure.error}"
        )
    text = _join_lines(
        cause,
        "The misfire policies decide about the occurrences in this time. Some may be missed.",
        _link("Missed runs", "run_changelist", query=f"?state__exact={State.MISSED}"),
        _link("Dashboard", "dashboard_changelist"),
    )
    return AlertContent(
        f"nothing was scheduled for {format_duration(outage.duration)}: from "
        f"{format_site_time(outage.since)} to {format_site_time(outage.until)}",
        text,
    )


def cluster_recovery_message(last: Alert, since: datetime) -> AlertContent:
    """Return the content of the alert that no error is left. ``last``: the last reported error."""
    text = _join_lines(
        f"There have been no errors since {format_site_time(since)}. The last alert was at "
        f"{format_site_time(last.created_at)}: {last.subject}",
        _link("Dashboard", "dashboard_changelist"),
    )
    return AlertContent("the cluster has recovered", text)


def _job_text(job: Job, state: State | None, text: str = "") -> str:
    return _join_lines(text, *_latest_run_lines(job, state), _link("Job", "job_change", job.pk))


def _failure_text(job: Job, found: ReportedFailures) -> str:
    if found.run is None:
        return _job_text(job, State.FAILED)
    lines = [*_lines_about(found.run, State.FAILED)]
    if found.incident is not None:
        lines.append(_link("Incident", "incident_change", found.incident.pk))
    return _join_lines(*lines, _link("Job", "job_change", job.pk))


def _latest_run_lines(job: Job, state: State | None) -> Iterator[str]:
    """Yield lines about the job's latest run in ``state``, if the latest runs include one.

    For ``State.MISSED``, also a run that counts earlier occurrences as missed.
    """

    def fits(run: Run) -> bool:
        counts_missed = state is State.MISSED and run.missed_before > 0
        return state is None or run.state == state or counts_missed

    runs = Run.objects.using(alias_for(Run)).filter(job=job.pk).order_by("-scheduled_at")
    run = next(filter(fits, runs[:LATEST]), None)
    if run is not None:
        yield from _lines_about(run, state)


def _lines_about(run: Run, state: State | None) -> Iterator[str]:
    yield f"Run at {format_site_time(run.scheduled_at)}: {run.state}" + (
        f", {run.reason}" if run.reason else ""
    )
    if state is State.MISSED and run.missed_before and run.missed_from:
        earlier = number_of(run.missed_before, "earlier occurrence was", "earlier occurrences were")
        yield f"{earlier} missed, since {format_site_time(run.missed_from)}"
    if state is State.FAILED:
        attempts = Attempt.objects.using(alias_for(Attempt)).filter(run=run.pk)
        last = attempts.order_by("-number").values_list("message", "raised_in").first()
        message, raised_in = last or ("", "")
        if message and in_one_line(ValueError(message)) not in run.reason:
            yield message[:1000]
        yield raised_in
    if link := _link("Run", "run_change", run.pk):
        yield link


def _link(label: str, page: str, *args: object, query: str = "") -> str:
    """Return the line with the URL of a page of the admin, or an empty text."""
    if not settings.SITE_URL:
        return ""
    try:
        path = reverse(f"admin:django_dcron_{page}", args=args)
    except NoReverseMatch:  # the project has no admin
        return ""
    return f"{label}: {settings.SITE_URL.rstrip('/')}{path}{query}"


def _join_lines(*parts: str) -> str:
    return "\n".join(filter(None, parts))


def _times(number: int) -> str:
    return f" {number} times" if number > 1 else ""
