"""When the jobs of a simulation occur: schedules, time zones and calendars, drawn from a seed.

A simulation begins at midnight UTC on Sunday, March 1, 2026. In half of the time zones, a date ends
within the first hours, so that entries for whole dates matter, too.
"""

from __future__ import annotations

from random import Random
from typing import Any

from django_dcron.schedules.calendar import ExclusionPolicy

SCHEDULES = (
    *("*/10 * * * *", "*/7 * * * *", "*/15 * * * *", "*/20 * * * *", "5,35 * * * *"),
    *("0 * * * *", "30 */2 * * *", "@hourly", "25 * * * *", "0 30 */3 * * *"),
)
INTERVALS = ("@every 23m", "@every 1h10m")
LINES = (
    "0 */2 * * *",
    "40 1-23/2 * * *",
    "*/20 0-5,12-17 * * *",
    "10,20 * * * SUN",
    "*/30 * 2 * *",
    "CRON_TZ=Asia/Kathmandu 5,50 */3 * * *",
    "CRON_TZ=America/St_Johns 0 */3 * * *",
    "0 30 * * * *",
    "@rrule 2026-02-15 FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=SU;BYHOUR=1,4,8,13,19,22;BYMINUTE=20",
)
EVERY_HOUR = "BYHOUR=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23"
RULES = (
    f"@rrule 2026-02-13 FREQ=WEEKLY;INTERVAL=2;BYDAY=SA,SU;{EVERY_HOUR};BYMINUTE=5,35",
    f"@rrule 2026-02-15 FREQ=WEEKLY;INTERVAL=2;WKST=SU;{EVERY_HOUR};BYMINUTE=10,30,50",
    f"@rrule 2026-02-01 FREQ=DAILY;INTERVAL=2;{EVERY_HOUR};BYMINUTE=0,15",
    f"@rrule 2026-02-02 FREQ=DAILY;INTERVAL=3;{EVERY_HOUR};BYMINUTE=45",
    f"@rrule 2026-01-31 FREQ=MONTHLY;BYMONTHDAY=1,-1;{EVERY_HOUR};BYMINUTE=12,42",
    "@rrule 2025-12-01 FREQ=MONTHLY;BYDAY=1SU,1MO;BYHOUR=2,5,6,7,11,14,17,20;BYMINUTE=0,20,40",
)
WORKING_DAYS = ("*/20 * WD#1 * ?", "5,35 * WD#2 * ?", "*/15 * WD#L * ?", "*/20 * WD#L-1 * ?")
TIMEZONES = (
    *("UTC", "UTC", "UTC", "Asia/Kathmandu"),
    *("America/St_Johns", "America/Los_Angeles", "America/Los_Angeles", "Pacific/Auckland"),
)
WITH_TIMES = (
    "01:30-03:00, 07:10-08:00, 13:00-15:30, 20:00-21:00",
    "22:30-00:45 # maintenance\n04:00-04:30\n11:00-12:10",
    "only 00:00-06:00, only 08:30-17:05, only 18:00-24:00",
    "only SUN\nonly SAT 12:00-20:00\nSUN 02:00-05:00",
    "SAT-SUN 03:15-06:00, MON 00:00-04:00, 03-01 10:00-12:30",
    "2026-02-28, 2026-03-01 01:00-09:20",
)
WHOLE_DATES = (
    "SAT",
    "MON-TUE",
    "03-01..03-02",
    "2026-03-01",
    "02-27..02-28",
    "only 02-01..03-01",
)
POLICIES_WITH_TIMES = (
    ExclusionPolicy.SKIP.value,
    *(ExclusionPolicy.WINDOW_END.value, ExclusionPolicy.WINDOW_END.value),
)
POLICIES = tuple(policy.value for policy in ExclusionPolicy)


def draw_calendars(random: Random) -> tuple[dict[str, str], ...]:
    """Draw the calendars: one with times, one with whole dates, both or none."""
    drawn = []
    if random.random() < 0.8:
        drawn.append({"name": "hours", "dates": random.choice(WITH_TIMES)})
    if random.random() < 0.4:
        drawn.append({"name": "dates", "dates": random.choice(WHOLE_DATES)})
    return tuple(drawn)


def calendar_edit(random: Random, name: str) -> dict[str, str]:
    """Draw other entries of the same kind: some jobs can't move to the next date with times."""
    return {"name": name, "dates": random.choice(WITH_TIMES if name == "hours" else WHOLE_DATES)}


def draw_timing(random: Random, calendars: tuple[str, ...]) -> dict[str, Any]:
    """Draw the fields that decide when a job occurs."""
    fields: dict[str, Any] = {
        "schedule": random.choice((_any_plain, _lines, _rule, _rule))(random),
        "timezone": random.choice(TIMEZONES),
        "calendar_id": None,
        "calendar_policy": POLICIES[0],
    }
    if calendars and random.random() < 0.8 and "@every" not in fields["schedule"]:
        name = random.choice(calendars)
        policies = POLICIES_WITH_TIMES if name == "hours" else POLICIES
        fields |= {"calendar_id": name, "calendar_policy": random.choice(policies)}
    return fields


def _any_plain(random: Random) -> str:
    return random.choice((*SCHEDULES, *INTERVALS))


def _lines(random: Random) -> str:
    return "\n".join(random.sample((*LINES, *random.choices(SCHEDULES)), random.choice((2, 2, 3))))


def _rule(random: Random) -> str:
    return random.choice((*RULES, *RULES, *WORKING_DAYS))
