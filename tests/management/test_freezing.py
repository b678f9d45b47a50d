"""``dcron freeze, unfreeze, freezes``: effects, output and exit codes."""

from datetime import datetime, timedelta
from getpass import getuser

import pytest

from django_dcron import control
from django_dcron.management.dcron.exits import NEGATIVE, USAGE_ERROR
from django_dcron.models import Freeze
from django_dcron.testing import set_clock
from tests.factories import make_idle_job, make_job
from tests.management.calling import call, table
from tests.scheduler.stand_ins import START

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("options", "until"),
    [
        ((), None),
        (("--for", "1h"), START + HOUR),
        (("--until", "+1h"), START + HOUR),
        (("--until", "2026-03-01T13:00+00:00"), START + HOUR),
    ],
)
def test_freeze_of_all_namespaces(options: tuple[str, ...], until: object) -> None:
    with set_clock(START):
        result = call("freeze", "--reason", "deploy", *options)
    freeze = Freeze.objects.get()
    assert result.code == 0
    assert (freeze.namespace, freeze.reason, freeze.until) == ("", "deploy", until)
    assert freeze.frozen_by == getuser()


def test_freeze_and_unfreeze_a_namespace() -> None:
    make_idle_job(namespace="shop")
    control.freeze("incident")
    assert call("freeze", "--reason", "deploy", "--namespace", "shop").code == 0
    result = call("unfreeze", "--namespace", "shop", "--json")
    assert result.code == 0
    assert result.json["freeze"]["ended_by"] == getuser()
    assert [each["namespace"] for each in result.json["in_force"]] == [""]
    assert call("unfreeze").code == 0
    assert not Freeze.objects.in_force().exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--reason", ""),
        ("--reason", "deploy", "--namespace", "shpo"),
        ("--reason", "deploy", "--until", "2020-01-01T00:00"),
        ("--reason", "deploy", "--until", "soon"),
        ("--reason", "deploy", "--for", "soon"),
        ("--reason", "deploy", "--for", "0s"),
    ],
)
def test_invalid_input_freezes_nothing(options: tuple[str, ...]) -> None:
    result = call("freeze", *options)
    assert result.code == USAGE_ERROR
    assert not Freeze.objects.exists()


def test_freeze_of_someone_else_is_replaced_only_with_an_option() -> None:
    with set_clock(START):
        control.freeze("migration", until=START + HOUR, by="ann")
        refused = call("freeze", "--reason", "maintenance", "--for", "1m")
        assert refused.code == NEGATIVE
        assert Freeze.objects.get().until == START + HOUR
        assert call("freeze", "--reason", "migration", "--for", "1m").code == 0
        assert Freeze.objects.get().until == START + HOUR
        assert call("freeze", "--reason", "migration", "--for", "2h").code == 0
        repeated = call("freeze", "--reason", "migration", "--for", "2h")
        replaced = call("freeze", "--reason", "maintenance", "--for", "1m", "--replace")
    assert len(repeated.out.splitlines()) == 1, "nothing was replaced"
    assert replaced.code == 0
    assert "migration" in replaced.out
    assert Freeze.objects.get().reason == "maintenance"


def test_unfreeze_with_another_reason_is_refused() -> None:
    assert call("freeze", "--reason", "deploy").code == 0
    assert call("unfreeze", "--reason", "migration").code == NEGATIVE
    assert call("unfreeze", "--reason", "deploy").code == 0


def test_unfreeze_without_a_freeze_is_refused() -> None:
    assert call("unfreeze").code == NEGATIVE
    assert call("unfreeze", "--namespace", "shop", "--json").code == NEGATIVE


def test_freezes_lists_the_freezes_in_force() -> None:
    assert call("freezes", "--json").json == {"version": 1, "freezes": []}
    assert call("freezes").code == 0
    make_idle_job(namespace="shop")
    with set_clock(START):
        made = call("freeze", "--reason", "deploy", "--for", "1h", "--json").json["freeze"]
        control.freeze("incident", "shop", by="ann")
        assert call("freezes", "--json").json["freezes"] == [
            made,
            {
                "namespace": "shop",
                "reason": "incident",
                "frozen_by": "ann",
                "since": "2026-03-01T12:00:00Z",
                "until": None,
                "ended_by": "",
            },
        ]
        rows = table(call("freezes").out)
    assert made["until"] == "2026-03-01T13:00:00Z"
    assert [row[0] for row in rows[1:]] == ["(all)", "shop"]
    assert [row[-1] for row in rows[1:]] == ["deploy", "incident"]


@pytest.mark.parametrize(
    ("until", "text"),
    [
        (None, "frozen"),
        (START + HOUR, "frozen until 13:00:00"),
        (START + 24 * HOUR, "frozen until 2026-03-02 12:00:00"),
        (START + timedelta(minutes=1), "in 30m 00s"),  # the freeze ends before the next run
    ],
)
def test_next_run_of_a_frozen_job_shows_the_end_of_the_freeze(
    until: datetime | None, text: str
) -> None:
    with set_clock(START):
        make_job(name="stock", namespace="shop", schedule="30 * * * *")
        make_job(name="other", schedule="30 * * * *")
        control.freeze("incident", "shop", until)
        listed, shown = call("list").out, call("show", "shop/stock").out
    rows = {row[0]: row for row in table(listed[listed.index("Job ") :])}
    assert text in " ".join(rows["shop/stock"])
    assert "frozen" not in " ".join(rows["other"])
    assert f"12:30:00 UTC ({text})" in shown


@pytest.mark.parametrize("command", [("list",), ("nodes",), ("history", "shop/stock")], ids=str)
def test_lists_name_the_freezes_that_cover_them(command: tuple[str, ...]) -> None:
    make_idle_job(namespace="shop", name="stock")
    make_idle_job(namespace="office")
    assert "Frozen" not in call(*command).out
    control.freeze("incident", "shop")
    control.freeze("moving", "office")
    shown = call(*command).out
    assert "Frozen: shop, until unfrozen: incident" in shown
    assert ("moving" in shown) == (command[0] != "history")
