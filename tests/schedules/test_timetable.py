"""The timetable neither loses nor repeats an occurrence, compared with plain enumeration."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_dcron.policies.misfire import Misfire, MisfirePolicy
from django_dcron.schedules import timetable as module
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.timetable import END, MAX_LATE_COUNTED, ClaimPlan, Timetable

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
GRACE = timedelta(seconds=30)
LOOK_AHEAD = timedelta(seconds=10)

texts = st.sampled_from(
    [
        "* * * * *",
        "*/7 * * * *",
        "*/20 * * * * *",
        "30 2 * * *",
        "0 */6 * * *",
        "@every 45s",
        "@every 17m",
        "@every 1h30m",
        "@at 2026-03-29T02:30",
    ]
)
instants = st.datetimes(datetime(2026, 3, 28), datetime(2026, 3, 30), timezones=st.just(UTC))  # noqa: DTZ001
policies = st.sampled_from(MisfirePolicy)


def enumerate_all(timetable: Timetable, first: datetime, until: datetime) -> list[datetime]:
    """Return the occurrences one by one, starting with the occurrence ``first``."""
    found: list[datetime] = []
    occurrence: datetime | None = first
    while occurrence is not None and occurrence <= until:
        if timetable.ends_at is not None and occurrence > timetable.ends_at:
            break
        found.append(occurrence)
        occurrence = timetable.schedule.next_after(occurrence)
    return found


def claims(
    timetable: Timetable, misfire: Misfire, next_at: datetime, nows: list[datetime]
) -> Iterator[ClaimPlan]:
    """Move the cursor through ticks at ``nows``, as the claim does."""
    cursor: datetime | None = next_at
    for now in nows:
        while cursor is not None and cursor <= now + LOOK_AHEAD:
            plan = timetable.plan_claim(
                cursor, late_before=now - misfire.grace, horizon=now + LOOK_AHEAD, misfire=misfire
            )
            yield plan
            cursor = plan.next_at


@given(
    text=texts,
    start=instants,
    steps=st.lists(
        st.one_of(
            st.timedeltas(SECOND, timedelta(minutes=3)), st.timedeltas(SECOND, timedelta(hours=30))
        ),
        min_size=1,
        max_size=5,
    ),
    policy=policies,
    limit=st.integers(1, 50),
    lasts=st.none() | st.timedeltas(SECOND, timedelta(hours=12)),
)
def test_every_occurrence_is_accounted_for_exactly_once(
    text: str,
    start: datetime,
    steps: list[timedelta],
    policy: MisfirePolicy,
    limit: int,
    lasts: timedelta | None,
) -> None:
    schedule = parse_schedule(text, "Europe/Berlin")
    timetable = Timetable(schedule, ends_at=lasts and start + lasts)
    first = timetable.first_after(start)
    if first is None:
        return
    nows = [start]
    for step in steps:
        nows.append(nows[-1] + step)
    misfire = Misfire(policy, GRACE, limit)

    plans = list(claims(timetable, misfire, first, nows))
    planned_runs = [run for plan in plans for run in plan.planned_runs]

    expected = enumerate_all(timetable, first, nows[-1] + LOOK_AHEAD)
    accounted: list[datetime] = []
    for run in planned_runs:
        if run.missed_before:
            assert run.missed_from is not None
            represented = [o for o in expected if run.missed_from <= o < run.scheduled_at]
            if len(represented) != run.missed_before:
                assert MAX_LATE_COUNTED <= run.missed_before < len(represented)
            accounted += represented
        accounted.append(run.scheduled_at)
    assert accounted == expected
    last = plans[-1] if plans else None
    if last is not None:
        assert last.previous_at == expected[-1]
        assert last.next_at == timetable.next_after(expected[-1])


@given(st.integers(1, 500), policies, st.integers(1, 20))
def test_misfire_policy_decides_which_late_occurrences_run(
    count: int, policy: MisfirePolicy, limit: int
) -> None:
    timetable = Timetable(parse_schedule("@every 1m"))
    occurrences = [NOON + i * timedelta(minutes=1) for i in range(count)]
    now = occurrences[-1] + GRACE + SECOND
    plan = timetable.plan_claim(
        NOON, late_before=now - GRACE, horizon=now, misfire=Misfire(policy, GRACE, limit)
    )
    started = [run.scheduled_at for run in plan.planned_runs if not run.missed]
    assert (
        started
        == {
            MisfirePolicy.SKIP: [],
            MisfirePolicy.RUN_LATEST: occurrences[-1:],
            MisfirePolicy.RUN_ALL: occurrences[:limit],
        }[policy]
    )


@given(instants, st.integers(1, 7200), st.timedeltas(timedelta(), timedelta(days=400)))
def test_every_schedule_keeps_its_phase_after_an_outage(
    start: datetime, seconds: int, outage: timedelta
) -> None:
    timetable = Timetable(parse_schedule(f"@every {seconds}s"))
    first = timetable.first_after(start)
    assert first is not None
    now = first + outage
    plan = timetable.plan_claim(
        first,
        late_before=now - GRACE,
        horizon=now + LOOK_AHEAD,
        misfire=Misfire(MisfirePolicy.RUN_LATEST, GRACE, 1),
    )
    assert plan.next_at is not None
    assert (plan.next_at - first) % timedelta(seconds=seconds) == timedelta()
    assert (plan.next_at - plan.previous_at) == timedelta(seconds=seconds)


@given(texts, instants, st.none() | instants, st.none() | instants)
def test_first_occurrence_is_after_now_and_within_start_and_end(
    text: str, now: datetime, starts_at: datetime | None, ends_at: datetime | None
) -> None:
    timetable = Timetable(parse_schedule(text, "Europe/Berlin"), starts_at, ends_at)
    first = timetable.first_after(now)
    if first is None:
        return
    assert first > now
    assert starts_at is None or first >= starts_at
    assert ends_at is None or first <= ends_at
    assert first.microsecond == 0


@given(texts.filter(lambda text: not text.startswith("@every")), instants, instants)
def test_first_occurrence_is_the_earliest_after_now_and_start(
    text: str, now: datetime, starts_at: datetime
) -> None:
    schedule = parse_schedule(text, "Europe/Berlin")
    first = Timetable(schedule, starts_at).first_after(now)
    candidates = schedule.occurrences(
        max(now, starts_at - SECOND), max(now, starts_at) + timedelta(days=2)
    )
    expected = next((at for at in candidates if at > now and at >= starts_at), None)
    assert first == expected


@given(instants, instants, st.integers(1, 7200))
def test_every_schedule_takes_its_phase_from_the_start(
    now: datetime, starts_at: datetime, seconds: int
) -> None:
    interval = timedelta(seconds=seconds)
    first = Timetable(parse_schedule(f"@every {seconds}s"), starts_at).first_after(now)
    assert first is not None
    whole = starts_at.replace(microsecond=0) + (SECOND if starts_at.microsecond else timedelta())
    assert first >= whole
    assert (first - whole) % interval == timedelta()
    assert first == whole or first - interval <= now < first


@given(instants, st.integers(1, 7200), st.timedeltas(-timedelta(hours=9), timedelta(hours=9)))
def test_every_schedule_continues_from_the_previous_occurrence(
    now: datetime, seconds: int, ago: timedelta
) -> None:
    """The previous occurrence may be in the future, if it was claimed ahead and withdrawn."""
    interval = timedelta(seconds=seconds)
    previous = (now - ago).replace(microsecond=0)
    first = Timetable(parse_schedule(f"@every {seconds}s")).first_after(now, previous)
    assert first is not None
    assert (first - previous) % interval == timedelta()
    assert now < first <= now + interval


def test_count_of_a_huge_backlog_is_capped() -> None:
    plan = Timetable(parse_schedule("* * * * * *")).plan_claim(
        NOON,
        late_before=NOON + timedelta(days=3650),
        horizon=NOON + timedelta(days=3650),
        misfire=Misfire(MisfirePolicy.RUN_LATEST, GRACE, 1),
    )
    late, *on_time = plan.planned_runs
    assert late.scheduled_at == NOON + timedelta(days=3650) - SECOND
    assert late.missed_before == MAX_LATE_COUNTED
    assert late.missed_from == NOON
    assert [run.scheduled_at for run in on_time] == [NOON + timedelta(days=3650)]


def test_huge_backlog_of_an_every_schedule_is_counted_exactly() -> None:
    plan = Timetable(parse_schedule("@every 1s"), ends_at=NOON + timedelta(days=10)).plan_claim(
        NOON,
        late_before=NOON + timedelta(days=3650),
        horizon=NOON + timedelta(days=3650),
        misfire=Misfire(MisfirePolicy.SKIP, GRACE, 1),
    )
    [missed] = plan.planned_runs
    assert missed.missed_before == 864_000
    assert missed.scheduled_at == NOON + timedelta(days=10)
    assert plan.next_at is None


@pytest.mark.parametrize("limit", [1, 5])
def test_count_beyond_the_catchup_limit_is_capped(limit: int) -> None:
    plan = Timetable(parse_schedule("* * * * * *")).plan_claim(
        NOON,
        late_before=NOON + timedelta(days=1),
        horizon=NOON,
        misfire=Misfire(MisfirePolicy.RUN_ALL, GRACE, limit),
    )
    assert len(plan.planned_runs) == limit + 1
    assert plan.planned_runs[-1].missed_before == MAX_LATE_COUNTED


def test_backlog_of_exactly_the_maximum_count_is_exact() -> None:
    timetable = Timetable(parse_schedule("* * * * * *"))
    late = timetable.late_occurrences(NOON, NOON + MAX_LATE_COUNTED * SECOND, MAX_LATE_COUNTED)
    assert (len(late.oldest), late.count) == (MAX_LATE_COUNTED, MAX_LATE_COUNTED)
    assert late.newest == NOON + (MAX_LATE_COUNTED - 1) * SECOND


def test_punctual_occurrences_are_claimed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PLANNED_RUNS", 4)
    timetable = Timetable(parse_schedule("* * * * * *"))
    misfire = Misfire(MisfirePolicy.SKIP, GRACE, 1)
    first = timetable.plan_claim(NOON, late_before=NOON, horizon=NOON + 9 * SECOND, misfire=misfire)
    assert [run.scheduled_at for run in first.planned_runs] == [NOON + i * SECOND for i in range(4)]
    assert (first.previous_at, first.next_at) == (NOON + 3 * SECOND, NOON + 4 * SECOND)


ANY_TIME = st.datetimes(timezones=st.just(UTC))
"""Years 1 to 9999."""


@given(
    text=st.sampled_from(
        [
            "* * * * * *",
            "0 3 * * *",
            "0 0 29 2 *",
            "@every 1s",
            "@every 400000h",
            "@at 2099-12-31T23:59",
        ]
    ),
    starts=st.none() | ANY_TIME,
    ends=st.none() | ANY_TIME,
    now=st.datetimes(datetime(2020, 1, 1), datetime(2198, 12, 31), timezones=st.just(UTC)),  # noqa: DTZ001
    previous=st.none() | ANY_TIME,
)
@example("@every 1s", datetime.min.replace(tzinfo=UTC), None, NOON, None)
@example("@every 1s", datetime.max.replace(tzinfo=UTC), None, NOON, None)
@example(
    "0 3 * * *", datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), NOON, None
)
@example("0 3 * * *", datetime.max.replace(tzinfo=UTC), None, NOON, None)
@example("0 3 * * *", None, datetime.min.replace(tzinfo=UTC), NOON, None)
def test_extreme_start_and_end_do_not_overflow_datetime(
    text: str,
    starts: datetime | None,
    ends: datetime | None,
    now: datetime,
    previous: datetime | None,
) -> None:
    timetable = Timetable(parse_schedule(text), starts, ends)
    found = timetable.first_after(now, previous)
    while found is not None and found < now + timedelta(hours=1):
        assert found > now
        assert starts is None or found >= starts
        assert ends is None or found <= ends
        found = timetable.next_after(found + timedelta(minutes=20))
    assert found is None or found < END
    plan = timetable.plan_claim(
        now,
        late_before=now - timedelta(minutes=1),
        horizon=now,
        misfire=Misfire(MisfirePolicy.RUN_LATEST, timedelta(minutes=1), 1),
    )
    assert plan.next_at is None or now < plan.next_at < END


def test_start_at_the_end_of_the_calendar_is_never_reached() -> None:
    for text in ("@every 1s", "* * * * *"):
        assert Timetable(parse_schedule(text), starts_at=END).first_after(NOON) is None
        last = END - timedelta(hours=1)
        assert Timetable(parse_schedule(text), starts_at=last).first_after(NOON) == last
