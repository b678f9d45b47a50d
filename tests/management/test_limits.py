"""``dcron limits``: the runs that have a place in each limit, and those that wait."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_dcron import control
from django_dcron.models import Limit, LimitPlace
from tests.factories import make_idle_job, make_run
from tests.management.calling import call, table
from tests.scheduler.stand_ins import START

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


def test_limits_have_their_running_and_waiting_runs_by_key() -> None:
    limit = control.save_limit(Limit(name="api", max_running=1, key="customer:{args[0]}"))
    control.save_limit(Limit(name="sms", max_running=5, max_started=100, interval=MINUTE))
    job = make_idle_job(limit=limit, overlap_policy="allow")
    for customer, number, minute in ((1, 1, 0), (1, None, 2), (1, None, 1), (2, 1, 3)):
        state = "waiting" if number is None else "running"
        run = make_run(job, state, due_at=START + minute * MINUTE, limited=True, trigger="manual")
        LimitPlace.objects.create(
            run=run, limit=limit, key=f"customer:{customer}", number=number, due_at=run.due_at
        )

    shown = call("limits")
    assert [line[:5] for line in table(shown.out)[1:]] == [
        ["api", "customer:1", "1 running", "1", "2"],
        ["api", "customer:2", "1 running", "1", "0"],
        ["sms", "-", "5 running, 100 started in 1m", "0", "0"],
    ]
    first, second, third = call("limits", "--json").json["limits"]
    assert first == {
        "name": "api",
        "max_running": 1,
        "max_started": None,
        "interval": None,
        "key": "customer:1",
        "running": 1,
        "waiting": 2,
        "waiting_since": (START + MINUTE).isoformat().replace("+00:00", "Z"),
    }
    assert (second["running"], second["waiting"], second["waiting_since"]) == (1, 0, None)
    assert (third["interval"], third["running"], third["waiting"]) == ("1m", 0, 0)


def test_number_of_queries_does_not_depend_on_the_number_of_limits() -> None:
    numbers = []
    for name in ("api", "sms", "mail"):
        control.save_limit(Limit(name=name, max_running=1))
        with CaptureQueriesContext(connection) as queries:
            call("limits")
        numbers.append(len(queries))
    assert len({*numbers}) == 1


def test_without_limits_a_line_says_so() -> None:
    result = call("limits")
    assert result.code == 0
    assert len(result.out.splitlines()) == 1
    assert call("limits", "--json").json["limits"] == []
