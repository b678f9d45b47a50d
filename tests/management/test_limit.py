"""``dcron limit``: create, change and delete a shared limit."""

from datetime import timedelta

import pytest

from django_dcron import control
from django_dcron.management.dcron.exits import NEGATIVE, USAGE_ERROR
from django_dcron.models import AuditEntry, Limit
from tests.factories import make_idle_job
from tests.management.calling import call

pytestmark = pytest.mark.django_db


def test_limit_is_created_changed_and_deleted() -> None:
    created = call("limit", "sms", "--max-started", "100", "--interval", "1m")
    assert (created.code, created.out) == (0, "sms: created: 100 started in 1m\n")

    changed = call("limit", "sms", "--max-running", "5", "--key", "{args[0]}")
    assert changed.out == "sms: changed: 5 running, 100 started in 1m, per {args[0]}\n"
    limit = Limit.objects.get()
    assert (limit.max_running, limit.max_started) == (5, 100)
    assert (limit.interval, limit.key) == (timedelta(minutes=1), "{args[0]}")

    removed = call("limit", "sms", "--max-started", "none", "--interval", "none", "--json")
    assert removed.json["outcome"] == "changed"
    assert removed.json["limit"]["max_started"] is None
    assert removed.json["limit"]["interval"] is None

    assert call("limit", "sms", "--delete").out == "sms: deleted\n"
    assert not Limit.objects.exists()
    assert {entry.via for entry in AuditEntry.objects.all()} == {"cli"}
    assert AuditEntry.objects.count() == 4


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((), "--max-running"),
        (("--max-running", "0"), "1 to 1000"),
        (("--max-running", "many"), "1 to 1000"),
        (("--max-started", "5"), "interval"),
        (("--interval", "soon", "--max-started", "5"), "--interval"),
        (("--max-running", "none"), "max_running"),
        (("--max-running", "1", "--key", "{customer"), "key"),
        (("--delete", "--max-running", "1"), "--delete can't be combined with --max-running, "),
    ],
)
def test_invalid_input_changes_nothing(options: tuple[str, ...], named: str) -> None:
    control.save_limit(Limit(name="api", max_running=3))
    result = call("limit", "api", *options)
    assert result.code == USAGE_ERROR
    assert named in result.err
    assert Limit.objects.get().version == 1


def test_limit_is_deleted_with_json() -> None:
    control.save_limit(Limit(name="api", max_running=3))
    assert call("limit", "api", "--delete", "--json").json["outcome"] == "deleted"


def test_limit_in_use_is_not_deleted() -> None:
    make_idle_job(limit=control.save_limit(Limit(name="api", max_running=3)))
    assert call("limit", "api", "--delete").code == NEGATIVE
    assert Limit.objects.exists()


def test_unknown_limit_is_named_with_similar_ones() -> None:
    control.save_limit(Limit(name="payment-api", max_running=3))
    result = call("limit", "payments-api", "--delete")
    assert result.code == USAGE_ERROR
    assert "Did you mean payment-api" in result.err
