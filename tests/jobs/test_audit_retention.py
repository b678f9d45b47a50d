"""Test that only expired entries of the audit log are deleted, by nodes and by ``dcron prune``."""

from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.jobs.audit import retention
from django_dcron.jobs.audit.retention import prune_audit_log
from django_dcron.models import AuditEntry, Deletion
from tests.factories import make_idle_job
from tests.management.calling import call

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


def _now() -> Any:
    return database_now("default")


@pytest.fixture(autouse=True)
def _entries(settings: Settings) -> None:
    """Create five entries of today and three old ones."""
    settings.DCRON_KEEP_AUDIT_FOR = 10 * DAY
    for _ in range(5):
        make_idle_job()
    entry = AuditEntry.objects.latest("pk")
    for age in (11, 12, 100):
        entry.pk, entry._state.adding, entry.at = None, True, _now() - age * DAY
        entry.save()


def test_expired_entries_are_deleted_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH_SIZE", 2)
    assert list(prune_audit_log(_now, dry_run=True)) == [3]
    assert AuditEntry.objects.count() == 8
    assert list(prune_audit_log(_now)) == [2, 1]
    assert AuditEntry.objects.count() == 5
    assert list(prune_audit_log(_now)) == []


def test_deletion_is_deleted_with_its_entry(settings: Settings) -> None:
    job = make_idle_job()
    control.delete(job)
    assert list(prune_audit_log(_now)) == [3]
    assert Deletion.objects.get().label == str(job)
    settings.DCRON_KEEP_AUDIT_FOR = -DAY
    list(prune_audit_log(_now))
    assert not Deletion.objects.exists()


def test_expired_entry_of_an_earlier_deletion_keeps_what_undoes_the_latest_one() -> None:
    """A job may be deleted several times if its row was loaded again."""
    control.delete(make_idle_job())
    latest = AuditEntry.objects.latest("pk")
    earlier = AuditEntry.objects.get(pk=latest.pk)
    earlier.pk, earlier._state.adding, earlier.at = None, True, _now() - 100 * DAY
    earlier.save()
    list(prune_audit_log(_now))
    assert not AuditEntry.objects.filter(pk=earlier.pk).exists()
    control.restore(latest)


def test_command_deletes_expired_entries_unless_jobs_are_named() -> None:
    assert call("prune", "--namespace", "default", "--json").json["audit_entries"] == 0
    assert call("prune", "--dry-run", "--json").json["audit_entries"] == 3
    assert AuditEntry.objects.count() == 8
    assert call("prune", "--json").json["audit_entries"] == 3
    assert AuditEntry.objects.count() == 5
