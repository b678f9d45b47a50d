"""Run the examples of docs/how-to/dynamic-jobs.md."""

import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.test import Client
from pytest_django import Settings

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.jobs.cursors import move_outdated_cursors
from django_dcron.models import AuditEntry, Cursor, Job, Run
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.policies.lifecycle import State
from tests.contrib.rest.test_examples import commands_of, send_command, shows
from tests.docs.test_documents import ROOT
from tests.factories import make_idle_job, make_run

PAGE = (ROOT / "docs" / "how-to" / "dynamic-jobs.md").read_text()
BLOCKS: list[str] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
JOB = "17"
"""The key of the job in the commands of the page."""

pytestmark = pytest.mark.django_db


class Tenant:
    """The project's model. A save or deletion sends the signals of a model."""

    objects: Any
    sync_minutes = 15
    timezone = "Europe/Berlin"
    plan = "basic"

    def __init__(self, pk: int):
        self.pk = pk

    def save(self, raw: bool = False) -> None:
        post_save.send(sender=Tenant, instance=self, created=True, raw=raw, using="default")

    def delete(self) -> None:
        post_delete.send(sender=Tenant, instance=self, using="default")


class PaymentRefused(Exception):
    """The exception of the page's transaction."""


def block(text: str) -> str:
    """Return the only block that contains ``text``."""
    (found,) = (each for each in BLOCKS if text in each)
    return found


@pytest.fixture
def shop(isolated_tasks: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names of ``shop/tenants.py``, with the modules and signals of the page's project."""
    modules = {name: ModuleType(name) for name in ("shop", "shop.tasks", "shop.models")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    modules["shop.models"].Tenant = Tenant  # type: ignore[attr-defined]
    exec(block("# shop/tasks.py"), vars(modules["shop.tasks"]))  # noqa: S102 (our own document)
    names = ModuleType("shop.tenants")
    for each in BLOCKS:
        if each.startswith("# shop/tenants.py"):
            exec(each, vars(names))  # noqa: S102
    monkeypatch.setitem(sys.modules, "shop.tenants", names)
    signals = ModuleType("shop.signals")
    exec(block("# shop/signals.py"), vars(signals))  # noqa: S102
    yield vars(names)
    assert post_save.disconnect(signals.tenant_saved, sender=Tenant)
    assert post_delete.disconnect(signals.tenant_deleted, sender=Tenant)


def names_of_jobs() -> list[str]:
    return list(Job.objects.filter(namespace="tenants").values_list("name", flat=True))


def test_jobs_follow_their_tenants(shop: dict[str, Any]) -> None:
    tenant = Tenant(101)
    tenant.save()
    job = Job.objects.get()
    assert (str(job), job.target) == ("tenants/sync-101", "shop.tasks.sync_tenant")
    tenant.save()
    assert Job.objects.get().version == 1
    tenant.sync_minutes = 30
    tenant.save()
    assert (Job.objects.get().version, Job.objects.get().schedule) == (2, "H/30 * * * *")
    exec(block("except ValidationError"), {"control": control})  # noqa: S102
    assert Job.objects.get().version == 2
    tenant.delete()
    assert not Job.objects.exists()


def test_loaddata_saves_no_job(shop: dict[str, Any]) -> None:
    Tenant(101).save(raw=True)
    assert names_of_jobs() == []


def test_rollback_of_the_example_leaves_the_job_as_it_was(shop: dict[str, Any]) -> None:
    def charge(tenant: Tenant) -> None:
        assert names_of_jobs() == ["sync-101"]
        raise PaymentRefused

    names = {"tenant": Tenant(101), "charge": charge, "PaymentRefused": PaymentRefused}
    exec(block("charge(tenant)"), names)  # noqa: S102
    assert names_of_jobs() == []
    assert transaction.get_connection().needs_rollback is False


def test_job_is_paused_resumed_and_run(shop: dict[str, Any]) -> None:
    names = {**shop, "tenant": Tenant(101)}
    names["tenant"].save()
    exec(block("control.resume(job)"), names)  # noqa: S102
    assert Run.objects.get().job == Job.objects.get()
    request = SimpleNamespace(user=User(username="ada"))
    exec(block("acting_as"), names | {"job": Job.objects.get(), "request": request})  # noqa: S102
    assert Job.objects.get().enabled is False
    assert AuditEntry.objects.order_by("-pk")[0].actor == "ada"


def test_many_jobs_are_saved_and_repaired(
    shop: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = [Tenant(number) for number in range(3)]
    assert shop["save_jobs"](tenants) == {}
    tenants[1].sync_minutes = 30
    tenants[2].timezone = "Europe/Berln"
    refused = shop["save_jobs"](tenants)
    assert {name: error.message_dict.keys() for name, error in refused.items()} == {
        "sync-2": {"timezone"}
    }
    versions = dict(Job.objects.values_list("name", "version"))
    assert versions == {"sync-0": 2, "sync-1": 2, "sync-2": 1}, "unchanged jobs are written, too"
    make_idle_job(name="other", namespace="tenants")
    everyone = SimpleNamespace(all=lambda: [Tenant(0), Tenant(4)])
    monkeypatch.setattr(Tenant, "objects", everyone, raising=False)
    shop["repair_jobs"]()
    assert names_of_jobs() == ["other", "sync-0", "sync-4"]
    assert Job.objects.get(name="sync-0").version == 2


def test_jobs_written_with_the_orm_are_found_later() -> None:
    exec(block("# don't"), {"Job": Job})  # noqa: S102
    assert not AuditEntry.objects.exists()
    move_outdated_cursors(database_now("default"), Job.objects.using("default"))
    assert Cursor.objects.get().problem
    with pytest.raises(ValidationError):
        control.save(Job.objects.get())


def test_job_with_an_unknown_target_is_scheduled() -> None:
    Job.objects.create(name="sync-102", target="nope", schedule="@daily")
    move_outdated_cursors(database_now("default"), Job.objects.using("default"))
    cursor = Cursor.objects.get()
    assert (cursor.problem, cursor.next_at is None) == ("", False)


def test_commands_return_the_responses(admin_user: User, shop: dict[str, Any]) -> None:
    client = Client()
    client.force_login(admin_user)
    key = ""
    for command, shown in (commands := commands_of(PAGE)):
        response = send_command(client, re.sub(rf"\b{JOB}\b", key, command) if key else command)
        key = key or str(Job.objects.get().pk)
        shown = eval(re.sub(rf"\b{JOB}\b", key, repr(shown)))  # noqa: S307 (our own document)
        if shown is None:
            assert response.status_code == 204
        else:
            assert shows(shown, response.json()), (command, response.content.decode())
    assert len(commands) == 7
    assert not Job.objects.exists()


def test_one_off_job_runs_at_its_time_rounded_up_to_a_second() -> None:
    code = block('f"@at').replace("shop.tasks.remind", "tests.app.tasks.echo")
    before = database_now("default") + timedelta(minutes=10)
    exec(code, {})  # noqa: S102
    job = Job.objects.get(name="remind-7")
    at = job.parsed_schedule.at
    assert at is not None
    assert at >= before
    assert (at.microsecond, job.args) == (0, [7])


def test_cleanup_deletes_finished_jobs_without_unfinished_runs() -> None:
    finished = {"namespace": "reminders", "enabled": False, "pause_reason": EXHAUSTED}
    make_run(make_idle_job(name="done", **finished), state=State.SUCCEEDED)
    make_run(make_idle_job(name="retrying", **finished), state=State.PENDING)
    make_idle_job(name="paused", **finished | {"pause_reason": "deploy"})
    make_idle_job(name="later", namespace="reminders")
    exec(block("is_finished"), {})  # noqa: S102
    remaining = Job.objects.filter(namespace="reminders").values_list("name", flat=True)
    assert sorted(remaining) == ["later", "paused", "retrying"]


def test_every_block_is_executed() -> None:
    assert len(BLOCKS) == 13


@pytest.mark.parametrize("source", ["django-celery-beat", "RedBeat"])
def test_values_and_calls_of_the_tables_are_valid(
    shop: dict[str, Any], settings: Settings, source: str
) -> None:
    settings.DCRON_QUEUES = ["sync"]
    table = PAGE.partition(f"\n## From {source}\n")[2].partition("\n## ")[0]
    names: dict[str, Any] = {
        "control": control,
        "Job": Job,
        "name": "sync",
        "task": "shop.tasks.sync_tenant",
        "schedule": "@daily",
        "args": [],
        "kwargs": {"tenant_id": 1},
        "reason": "unpaid",
        "at": database_now("default") + timedelta(hours=1),
        "start": database_now("default"),
        "end": database_now("default") + timedelta(days=9),
    }
    cells = re.findall(r"^\| `.*?` .*?\| (`.*) \|$", table, re.MULTILINE)
    texts = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    create, *rest = (text for text in texts if text.startswith(("control.", "Job.")))
    names["job"], _created = eval(create, names)  # noqa: S307 (our own document)
    values = [text for text in texts if re.match(r"\w+=", text)]
    for text in (*rest, *(f"control.update_or_create(name, {value})" for value in values)):
        if "delete" not in text:
            eval(text, names)  # noqa: S307
    (delete,) = (text for text in rest if "delete" in text)
    eval(delete, names | {"job": Job.objects.get()})  # noqa: S307
    assert not Job.objects.exists()
    schedules = [eval(text, names) for text in texts if re.match('f?"', text)]  # noqa: S307
    for schedule in schedules:
        control.update_or_create(
            "sync", target="shop.tasks.sync_tenant", kwargs={"tenant_id": 1}, schedule=schedule
        )
    assert len(schedules) == 3
    assert Job.objects.get().schedule == schedules[-1]
