"""What alerts say. In English, as the logs: they are read by a team, not by the user of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from django.urls import NoReverseMatch, reverse

from django_dcron.conf import settings
from django_dcron.domain.alerting import EVERY, Event, Kind
from django_dcron.domain.durations import write_duration
from django_dcron.domain.lifecycle import State
from django_dcron.domain.system_health import Issue
from django_dcron.models import Attempt, Job, Node, Run
from django_dcron.models.database import alias_for, in_one_line

LATEST = 50
"""Runs of a job among which the one that an alert is about is looked for."""
SECOND = timedelta(seconds=1)


def of_event(event: Event, job: Job) -> tuple[str, str]:
    """Subject and text."""
    number = event.number
    match event.rule.on:
        case Kind.FAILED if event.rule.after == EVERY:
            return f"{job} failed{_times(number)}", _about(job, State.FAILED)
        case Kind.FAILED:
            in_a_row = f", {number} runs in a row" if number > 1 else ""
            return f"{job} failed{in_a_row}", _about(job, State.FAILED)
        case Kind.RECOVERED:
            after = "a failed run" if number == 1 else f"{number} failed runs in a row"
            return f"{job} has recovered", _about(job, State.SUCCEEDED, f"It succeeded after {after}.")
        case Kind.MISSED:
            occurrences = "an occurrence" if number == 1 else f"{number} occurrences"
            return f"{job} missed {occurrences}", _about(job, State.MISSED)
        case _:
            said = f"It runs no more until somebody resumes it: {job.pause_reason}."
            return f"{job} has paused itself", _about(job, State.FAILED, said)


def late(run: Run, within: timedelta) -> tuple[str, str]:
    said = f"The run of {_moment(run.scheduled_at)} has not ended within {write_duration(within)}; it is {run.state}."
    return f"{run.job} is late", _joined(said, run.reason, _link("run", run.pk))


def silent(job: Job, since: datetime, span: timedelta) -> tuple[str, Callable[[], str]]:
    """The text looks at the job's runs: a silence is found anew at each look, and told of at the first."""
    said = f"No run has succeeded for {write_duration(span)}; the last time, or the beginning, was {_moment(since)}."
    return f"{job} is silent", lambda: _joined(said, _about(job, None))


def node_lost(node: Node) -> tuple[str, str]:
    said = f"Node {node.id} on {node.host}, process {node.pid}, was last heard of at {_moment(node.heartbeat_at)}."
    return f"node {node.name} is lost", _joined(said, "Others lead its shards, if there are any.")


def degraded(name: str, since: datetime) -> tuple[str, str]:
    said = f"Since {_moment(since)} node {name} cannot reach the lock's server. Nothing runs twice; work may be done twice."
    return f"node {name} is degraded", said


def unhealthy(issue: Issue) -> tuple[str, str]:
    """The subject says what is wrong, the text what to do."""
    return str(issue.summary), _joined(str(issue.remedy), _url("admin:django_dcron_dashboard_changelist"))


def _about(job: Job, state: State | None, said: str = "") -> str:
    return _joined(said, *_run(job, state), _link("job", job.pk))


def _run(job: Job, state: State | None) -> Iterator[str]:
    """The latest run of the job in ``state``, if it is one of its latest."""
    runs = Run.objects.using(alias_for(Run)).filter(job=job.pk).order_by("-scheduled_at")
    run = next((run for run in runs[:LATEST] if state is None or run.state == state), None)
    if run is None:
        return
    yield f"Run of {_moment(run.scheduled_at)}: {run.state}" + (f", {run.reason}" if run.reason else "")
    if state is State.FAILED:
        attempts = Attempt.objects.using(alias_for(Attempt)).filter(run=run.pk)
        message = attempts.order_by("-number").values_list("message", flat=True).first()
        if message and in_one_line(ValueError(message)) not in run.reason:
            yield message[:1000]
    if link := _link("run", run.pk):
        yield link


def _link(model: str, key: object) -> str:
    return _url(f"admin:django_dcron_{model}_change", key)


def _url(name: str, *args: object) -> str:
    if not settings.SITE_URL:
        return ""
    try:
        path = reverse(name, args=args)
    except NoReverseMatch:  # a project without the admin
        return ""
    return settings.SITE_URL.rstrip("/") + path


def _joined(*parts: str) -> str:
    return "\n".join(filter(None, parts))


def _times(number: int) -> str:
    return f" {number} times" if number > 1 else ""


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
