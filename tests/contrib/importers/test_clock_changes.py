"""Check docs/how-to/migrate.md: how django-dcron and other schedulers handle clock changes."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.cron import CronTrigger
from celery.schedules import crontab
from croniter import croniter
from huey import crontab as huey_crontab

from django_dcron.schedules.schedule import parse_schedule

BERLIN = ZoneInfo("Europe/Berlin")
SPRING, AUTUMN = datetime(2027, 3, 27, 22, tzinfo=BERLIN), datetime(2027, 10, 30, 22, tzinfo=BERLIN)
NIGHT = timedelta(hours=8)
DIRECTORY = Path(__file__).resolve().parents[3] / "docs" / "how-to"
PAGE = (DIRECTORY / "migrate.md").read_text()


def beat(minute: str, hour: str, night: datetime) -> Iterator[datetime]:
    """Yield beat's occurrences of the night, asking every minute as beat does."""
    schedule, now = crontab(minute=minute, hour=hour), night.astimezone(UTC)
    schedule.tz = BERLIN
    schedule.nowfun = lambda: now.astimezone(BERLIN)
    last = now
    while now < night.astimezone(UTC) + NIGHT:
        now += timedelta(minutes=1)
        if schedule.is_due(last.astimezone(BERLIN))[0]:
            yield now
            last = now


def apscheduler(minute: str, hour: str, night: datetime) -> Iterator[datetime]:
    trigger = CronTrigger(minute=minute, hour=hour, timezone=BERLIN)
    fire = trigger.get_next_fire_time(None, night)
    while fire.astimezone(UTC) <= night.astimezone(UTC) + NIGHT:
        yield fire
        fire = trigger.get_next_fire_time(fire, fire)


def django_q2(minute: str, hour: str, night: datetime) -> Iterator[datetime]:
    for moment in croniter(f"{minute} {hour} * * *", night).all_next(datetime):
        if moment.astimezone(UTC) > night.astimezone(UTC) + NIGHT:
            return
        yield moment


def huey(minute: str, hour: str, night: datetime) -> Iterator[datetime]:
    """Yield the minutes of the clock that Huey's check accepts, without UTC."""
    check = huey_crontab(minute=minute, hour=hour)
    for number in range(NIGHT // timedelta(minutes=1)):
        moment = night.astimezone(UTC) + timedelta(minutes=number)
        if check(moment.astimezone(BERLIN).replace(tzinfo=None)):
            yield moment


def dcron(minute: str, hour: str, night: datetime) -> Iterator[datetime]:
    schedule = parse_schedule(f"{minute} {hour} * * *", "Europe/Berlin")
    return schedule.occurrences(night, night.astimezone(UTC) + NIGHT)


SCHEDULERS = {
    "here": dcron,
    "Celery": beat,
    "django-q2": django_q2,
    "APScheduler": apscheduler,
    "Huey": huey,
}


@pytest.mark.parametrize(
    ("minute", "hour", "night"),
    [("30", "2", SPRING), ("30", "2", AUTUMN), ("30", "*", AUTUMN)],
)
def test_documented_clock_changes_match_the_schedulers(
    minute: str, hour: str, night: datetime
) -> None:
    cells = {}
    for scheduler, runs in SCHEDULERS.items():
        found = [moment.astimezone(UTC).astimezone(BERLIN) for moment in runs(minute, hour, night)]
        times = [f"{moment:%H:%M %Z}" for moment in found if 2 <= moment.hour <= 3]
        cells[scheduler] = ", ".join(times) or "none"
    row = " | ".join(cells.values())
    assert (
        f"| `{minute} {hour} * * *` on {night.astimezone(UTC) + timedelta(hours=8):%Y-%m-%d} "
        f"| {row} |"
    ) in PAGE
