"""Several lines, recurrence rules and calendars with times, while nodes and workers are killed."""

from datetime import UTC, timedelta

import pytest

from django_dcron import control
from django_dcron.models import Calendar, Run
from tests.cluster.cluster import SECOND, WITNESS, Cluster, fault, now
from tests.factories import make_job

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql]

LINES = "*/4 * * * * *\n*/6 * * * * *\nCRON_TZ=Asia/Kathmandu */10 * * * * *"


def test_occurrences_of_all_kinds_survive_killed_processes(cluster: Cluster) -> None:
    """The verdict counts the occurrences by brute force, including those of the calendar."""
    minute = now().astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    end = minute + timedelta(minutes=1)
    dates = f"{minute:%H:%M}-{end:%H:%M}"
    control.save_calendar(Calendar(name="maintenance", dates=dates))
    hours = f"{minute:%H},{end:%H}" if minute.hour != end.hour else f"{minute:%H}"
    given = {"target": WITNESS, "overlap_policy": "allow", "max_attempts": 5}
    calendar = {"calendar_id": "maintenance", "schedule": "*/2 * * * * *"}
    rule = f"@rrule 2026-01-01 FREQ=DAILY;BYHOUR={hours};BYMINUTE={minute.minute},{end.minute}"
    make_job(name="rule", schedule=f"{rule};BYSECOND=1,4,5,30,31", **given)
    make_job(name="skipping", calendar_policy="skip", **calendar, **given)
    moving = make_job(name="moving", calendar_policy="window_end", **calendar, **given)
    cluster.start(
        jobs=6, schedule=LINES, node_env=fault(["claim.written", "claim.committed"], chance=0.03)
    )
    cluster.wait_for(minute + 20 * SECOND)
    for member in (cluster.nodes[0], cluster.workers[0]):
        member.process.kill()
    cluster.wait_for(end + 5 * SECOND)
    cluster.remove_faults()
    cluster.account()
    assert Run.objects.filter(job=moving, scheduled_at=end).count() == 1
    assert not Run.objects.filter(job=moving, scheduled_at__gte=minute, scheduled_at__lt=end)
