"""The command in the docs that moves jobs and their history to another database."""

import re
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import models

from django_dcron import control
from django_dcron.models import Attempt, AuditEntry, Cursor, Definition, Job, Limit, Run, Statistics
from django_dcron.testing import run_due
from tests.docs.test_documents import ROOT
from tests.factories import make_job

DEPLOYMENT = (ROOT / "docs" / "how-to" / "deployment.md").read_text()
MODELS: tuple[type[models.Model], ...] = (
    *(Job, Cursor, Statistics, Definition, Limit, Run, Attempt),
    AuditEntry,
)


def rows() -> dict[str, list[dict[str, object]]]:
    return {
        model.__name__: list(model._default_manager.order_by("pk").values()) for model in MODELS
    }


@pytest.mark.django_db
def test_documented_dump_has_jobs_and_history(tmp_path: Path) -> None:
    limit = control.save_limit(Limit(name="payment-api", max_running=1))
    job = control.save(make_job(name="report", limit=limit))
    deleted = control.save(make_job(name="old"))
    control.trigger(job)
    control.trigger(deleted)
    assert {run.state for run in run_due(jobs=[job, deleted])} == {"succeeded"}
    control.delete(deleted)
    before = rows()
    assert all(before.values())

    [command] = re.findall(r"`manage\.py (dumpdata [^`]*)`", DEPLOYMENT)
    dump = tmp_path / "all.yaml"
    call_command(*command.replace("all.yaml", str(dump)).split())
    for model in reversed(MODELS):
        model._default_manager.all()._raw_delete("default")
    call_command("loaddata", str(dump), verbosity=0)

    assert rows() == before
