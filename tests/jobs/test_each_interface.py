"""Changes through each interface: one audit entry each, and recorded runs stay as they were."""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from django_dcron import control
from django_dcron.execution.executor import execute
from django_dcron.models import Attempt, AuditEntry, Job
from tests.admin.conftest import action_url, fill_in, job_url
from tests.contrib.rest.conftest import Api
from tests.contrib.rest.conftest import api as api
from tests.depth import FULL
from tests.factories import make_idle_job, make_run
from tests.jobs.test_save_many import undone
from tests.management.calling import call

pytestmark = pytest.mark.django_db

Interface = Callable[[Job, str, str], None]
"""Makes one change of a job: the action, and a new value of the argument or of the name."""
TARGETS = ("tests.app.tasks.echo", "tests.app.tasks.witness")
ACTIONS = {
    "edit": "change",
    "retarget": "change",
    "rename": "change",
    "pause": "pause",
    "resume": "resume",
    "trigger": "trigger",
    "delete": "delete",
}
"""What the audit log calls each change."""
CHANGES = [(via, action) for via in ("code", "admin", "rest", "cli") for action in ACTIONS]


@pytest.fixture
def interfaces(
    admin_client: Client, api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, tuple[str, Interface]]:
    """Return each interface with the actor of its entries."""
    monkeypatch.setenv("LOGNAME", "grace")
    return {
        "code": ("ada", by_control),
        "admin": ("admin", lambda *given: by_admin(admin_client, *given)),
        "rest": ("admin", lambda *given: by_rest(api, *given)),
        "cli": ("grace", lambda *given: by_command(tmp_path / "jobs.json", *given)),
    }


def edited_fields(job: Job, action: str, value: str) -> dict[str, Any]:
    match action:
        case "edit":
            return {"kwargs": {"number": int(value)}}
        case "retarget":
            return {"target": next(target for target in TARGETS if target != job.target)}
        case _:
            return {"name": f"job {value}"}


def by_control(job: Job, action: str, value: str) -> None:
    with control.acting_as("ada"):
        match action:
            case "pause" | "resume" | "trigger" | "delete":
                getattr(control, action)(job)
            case _:
                for name, new in edited_fields(job, action, value).items():
                    setattr(job, name, new)
                control.save(job)


def by_admin(client: Client, job: Job, action: str, value: str) -> None:
    match action:
        case "pause" | "resume":
            response = client.post(action_url(job, action), {"reason": "deploy"})
        case "trigger":
            response = client.post(action_url(job, "run_now"), {"confirmed": "1"})
        case "delete":
            response = client.post(job_url(job).replace("/change/", "/delete/"), {"post": "yes"})
        case _:
            fields = edited_fields(job, action, value).items()
            texts = {name: new if isinstance(new, str) else json.dumps(new) for name, new in fields}
            response = fill_in(client, job_url(job), **texts)
    assert response.status_code == 302, response.content


def by_rest(api: Api, job: Job, action: str, value: str) -> None:
    path = f"jobs/{job.pk}/"
    match action:
        case "pause" | "resume" | "trigger":
            response = api.post(f"{path}{action}/", {})
        case "delete":
            response = api.delete(path, if_match="*")
        case _:
            response = api.patch(path, edited_fields(job, action, value), if_match="*")
    assert response.status_code < 300, response.content


def by_command(path: Path, job: Job, action: str, value: str) -> None:
    match action:
        case "pause" | "resume" | "delete":
            done = call(action, str(job.pk))
        case "trigger":
            done = call("run", str(job.pk), "--no-wait")
        case "rename":  # an import finds a job by its name
            done = call("set", str(job.pk), f"name={edited_fields(job, action, value)['name']}")
        case _:
            document = call("export", job.name).json
            document["jobs"][0] |= edited_fields(job, action, value)
            path.write_text(json.dumps(document))
            done = call("import", str(path), "--apply")
    assert done.code == 0, done


def perform(job: Job) -> Attempt:
    run = make_run(job, "queued")
    assert execute(run.pk, 1, worker="w")
    return run.attempts.get()


def recorded() -> dict[int, tuple[Any, ...]]:
    """Return what each attempt has recorded."""
    fields = ("definition", "definition__content", "definition__version", "release")
    rows = Attempt.objects.values_list("pk", "run__args", "run__kwargs", *fields)
    return {row[0]: row[1:] for row in rows}


@settings(
    max_examples=30 if FULL else 2,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(changes=st.permutations(CHANGES))
def test_each_change_has_one_entry_and_recorded_runs_stay(
    interfaces: dict[str, tuple[str, Interface]], changes: list[tuple[str, str]]
) -> None:
    """All changes are made in any order. After each, a run records the job as it is then."""
    numbers = count(1)
    with undone():
        job = make_idle_job(target=TARGETS[0], kwargs={"number": 0})
        perform(job)
        for via, action in changes:
            actor, change = interfaces[via]
            if action == "resume" and job.enabled:
                control.pause(job)
            elif action == "pause" and not job.enabled:
                control.resume(job)
            before, latest = recorded(), AuditEntry.objects.latest("pk").pk
            change(job, action, str(next(numbers)))
            (entry,) = AuditEntry.objects.filter(pk__gt=latest)
            assert (entry.actor, entry.via, entry.action) == (actor, via, ACTIONS[action])
            assert entry.job_id == job.pk
            assert recorded() == before
            if action == "delete":
                job = make_idle_job(target=TARGETS[0], kwargs={"number": 0})
            job = Job.objects.get(pk=job.pk)
            definition = perform(job).definition
            assert definition is not None
            assert definition.content["target"] == job.target
            assert definition.content["kwargs"] == job.kwargs
