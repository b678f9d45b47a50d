"""The engine matches the oracle in every zone, for every kind of field and for random schedules."""

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from random import Random
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.days import HORIZON
from django_dcron.schedules.describe import describe
from django_dcron.schedules.schedule import Schedule, parse_schedule
from django_dcron.schedules.zones import offset_period_at
from tests import depth
from tests.schedules.oracle import NAMES, Oracle, transitions

ZONES = sorted(available_timezones() - {"localtime", "posixrules", "Factory"})
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)
# The last zone whose offset wasn't in whole minutes changed in January 1972.
WHOLE_MINUTES = datetime(1972, 2, 1, tzinfo=UTC)


def examples(count: int) -> settings:
    """Return settings for ``count`` examples at full depth, without a time limit.

    The examples are the same in every run.
    """
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(
        max_examples=depth.examples(count),
        deadline=None,
        derandomize=True,
        suppress_health_check=slow,
    )


# --- Expressions --------------------------------------------------------------------------------


def spans(low: int, high: int, names: list[str] | None = None) -> st.SearchStrategy[str]:
    """Generate values, ranges and steps of numbers or names."""
    numbers = st.integers(low, high)
    steps = st.integers(1, max(1, (high - low) // 2))

    def word(value: int) -> str:
        return (
            names[value - low] if names and value % 2 and value - low < len(names) else str(value)
        )

    ranges = st.tuples(numbers, numbers).map(lambda pair: f"{word(min(pair))}-{word(max(pair))}")
    return st.one_of(
        numbers.map(word),
        numbers.map(str),
        ranges,
        st.tuples(ranges, steps).map(lambda pair: f"{pair[0]}/{pair[1]}"),
        st.tuples(numbers, steps).map(lambda pair: f"{pair[0]}/{pair[1]}"),
    )


def lists(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(items, min_size=1, max_size=3).map(",".join)


def starred(low: int, high: int) -> st.SearchStrategy[str]:
    return st.one_of(st.just("*"), st.integers(1, (high - low) // 2 or 1).map("*/{}".format))


WEEKDAYS, MONTHS = list(NAMES)[12:], list(NAMES)[:12]
MONTH_DAYS = st.one_of(
    starred(1, 31),
    st.just("?"),
    lists(
        st.one_of(
            spans(1, 31),
            st.sampled_from(["L", "LW", "L-1", "L-5", "L-28", "L-30"]),
            st.sampled_from(["1W", "2W", "15W", "28W", "29W", "30W", "31W"]),
        )
    ),
)
WEEK_DAYS = st.one_of(
    starred(0, 6),
    st.just("?"),
    lists(
        st.one_of(
            spans(0, 6, WEEKDAYS),
            st.sampled_from(["L", "7", "5-7", "FRI-SUN", "MON-SUN/3", "0-7/2"]),
            st.tuples(
                st.sampled_from([*WEEKDAYS, *"01234567"]),
                st.sampled_from(["L", "#1", "#2", "#4", "#5"]),
            ).map("".join),
        )
    ),
)
MONTH = st.one_of(st.just("*"), st.just("*"), starred(1, 12), lists(spans(1, 12, MONTHS)))
YEAR = st.one_of(st.just("*"), lists(spans(1995, 2060)))
# Most offsets change in the early hours, so generate these more often.
HOUR = st.one_of(starred(0, 23), lists(spans(0, 4)), lists(spans(0, 23)))
SIXTY = st.one_of(starred(0, 59), lists(spans(0, 59)))
MINUTE_CRON = st.tuples(SIXTY, HOUR, MONTH_DAYS, MONTH, WEEK_DAYS).map(" ".join)
SECOND_CRON = st.tuples(SIXTY, MINUTE_CRON).map(" ".join)


def parsed(text: str, zone: str = "UTC") -> Schedule:
    """Return the schedule.

    If the engine finds no matching day, check that the oracle finds none, and reject the example.
    """
    try:
        return parse_schedule(text, zone)
    except InvalidSchedule as refusal:
        code = refusal.code
    oracle = Oracle(text)
    assert code == "never_matches"
    assert not any(oracle.day(date(1995, 1, 1) + DAY * n) for n in range(66 * 366))
    return reject()


def assert_agrees(
    text: str, zone: str, start: datetime, end: datetime, step: timedelta = MINUTE
) -> None:
    """Check that engine and oracle agree in `start < t <= end`, in both directions."""
    schedule = parsed(text, zone)
    expected = list(Oracle(text).occurrences(ZoneInfo(zone), start, end, step))
    assert list(schedule.occurrences(start, end)) == expected, (text, zone, start)
    found, at = [], schedule.previous_before(end + step)
    while at is not None and at > start:
        found.append(at)
        at = schedule.previous_before(at)
    assert found[::-1] == expected, (text, zone, start)


# --- Comparison with the oracle -----------------------------------------------------------------

AROUND_CHANGES = [
    "30 2 * * *",
    "0,30 0-3 * * *",
    "*/15 * * * *",
    "*/30 1-2 * * *",
    "59 23 * * *",
    "0 0 * * *",
    "15 */3 * * *",
    "7-59/17 0,1,2,3,22,23 * * *",
    "0 */2 * * *",
    "45 1,2 L,1,15W * *",
    "5 * * * 0,1",
    "0 0 * * 0#1,0L,6",
    "20 0-4 ? * SAT-SUN",
]


@lru_cache(maxsize=1)
def distinct_zones() -> list[tuple[str, list[tuple[datetime, timedelta]]]]:
    """Return one zone for each distinct history of changes, with its changes."""
    histories = {}
    for zone in depth.sample(depth.sample(ZONES)):  # every 36th zone in a sample run
        changes = transitions(zone)
        histories.setdefault(tuple(changes), (zone, changes))
    return list(histories.values())


def test_occurrences_match_the_oracle_at_clock_changes_in_every_zone() -> None:
    random = Random(20260101)
    for zone, changes in distinct_zones():
        recent = [change for change in changes if change[0] > WHOLE_MINUTES]
        odd = [change for change in recent if abs(change[1]) != timedelta(hours=1)]
        for instant, shift in {*random.sample(recent, min(2, len(recent))), *odd[-2:]}:
            margin = 2 * abs(shift) + timedelta(hours=3)
            text = random.choice(AROUND_CHANGES)
            assert_agrees(text, zone, instant - margin, instant + margin)


def test_offset_changes_match_the_time_zone_files() -> None:
    begin, end = datetime(1972, 2, 1, tzinfo=UTC), datetime(2037, 6, 1, tzinfo=UTC)
    for zone, changes in distinct_zones():
        at, edges = begin.replace(tzinfo=None), []
        while at.replace(tzinfo=UTC) < end:
            period = offset_period_at(zone, at)
            edges += [(period.start, period.offset - period.offset_before)]
            at = period.end
        shifts = [(start.replace(tzinfo=UTC), shift) for start, shift in edges[1:] if shift]
        assert shifts == [change for change in changes if begin < change[0] < end], zone


@examples(150)
@given(st.sampled_from(ZONES), st.data(), MINUTE_CRON)
def test_random_minute_cron_matches_the_oracle_around_clock_changes(
    zone: str, data: st.DataObject, text: str
) -> None:
    recent = [at for at, _ in transitions(zone) if at > WHOLE_MINUTES]
    at = data.draw(st.sampled_from(recent)) if recent else EPOCH + 9000 * DAY
    shift = timedelta(minutes=data.draw(st.integers(-300, 300)))
    assert_agrees(text, zone, at + shift - timedelta(hours=6), at + shift + timedelta(hours=6))


@examples(60)
@given(st.sampled_from(ZONES), st.data(), SECOND_CRON)
def test_random_second_cron_matches_the_oracle_around_old_changes(
    zone: str, data: st.DataObject, text: str
) -> None:
    """Compare second by second, back to the time when zones used local mean time.

    At that time, shifts weren't in whole minutes.
    """
    changes = [at for at, shift in transitions(zone) if abs(shift) < timedelta(minutes=45)]
    at = data.draw(st.sampled_from(changes)) if changes else EPOCH + 9000 * DAY
    assert_agrees(text, zone, at - timedelta(minutes=20), at + timedelta(minutes=20), SECOND)


@examples(60)
@given(st.sampled_from(ZONES), st.integers(68 * 366, 180 * 365), MINUTE_CRON)
def test_random_minute_cron_matches_the_oracle_in_the_far_future(
    zone: str, day: int, text: str
) -> None:
    at = EPOCH + DAY * day
    assert_agrees(text, zone, at, at + DAY)


@examples(150)
@given(MONTH_DAYS, MONTH, WEEK_DAYS, YEAR, st.integers(0, 365 * 60))
def test_random_day_fields_match_the_oracle(
    month_days: str, month: str, week_days: str, year: str, start: int
) -> None:
    """Compare day by day over nine years, with all day fields and both ways to combine them."""
    text = f"0 0 0 {month_days} {month} {week_days} {year}"
    schedule, oracle = parsed(text), Oracle(text)
    first = datetime(1995, 1, 1, tzinfo=UTC) + DAY * start
    days = [first + DAY * n for n in range(9 * 366)]
    expected = [day for day in days if oracle.day(day.date())]
    assert list(schedule.occurrences(first - SECOND, days[-1])) == expected
    at, found = schedule.previous_before(days[-1] + SECOND), []
    while at is not None and at >= first:
        found.append(at)
        at = schedule.previous_before(at)
    assert found[::-1] == expected


# --- Properties of every schedule ---------------------------------------------------------------

TEXTS = st.one_of(
    MINUTE_CRON,
    SECOND_CRON,
    st.tuples(SECOND_CRON, YEAR).map(" ".join),
    st.sampled_from(
        ["@hourly", "@daily", "@every 7m", "@every 25h", "@at 2026-03-29T02:30", "0 0 29 2 *"]
    ),
)
INSTANTS = st.datetimes(datetime(1940, 1, 1), datetime(2110, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@examples(400)
@given(TEXTS, st.sampled_from(ZONES), INSTANTS, st.floats(0, 1))
def test_next_after_and_previous_before_are_consistent(
    text: str, zone: str, instant: datetime, part: float
) -> None:
    schedule = parsed(text, zone) if not text.startswith("@") else parse_schedule(text, zone)
    after, before = schedule.next_after(instant), schedule.previous_before(instant)
    assert (after, before) == (schedule.next_after(instant), schedule.previous_before(instant))
    assert after is None or after > instant
    assert before is None or before < instant
    if schedule.interval is not None:
        assert after is not None
        assert schedule.previous_before(after) == instant
        return
    if after is not None:
        between = instant + (after - instant) * part
        assert schedule.next_after(min(between, after - SECOND / 1000)) == after
        assert schedule.previous_before(after + SECOND / 1000) == after
        last = schedule.previous_before(after)
        assert last in (instant, before) or (
            last is None and before is not None and after - before > HORIZON
        )
    if before is not None:
        assert schedule.next_after(before - SECOND / 1000) == before
        following = schedule.next_after(before)
        assert following in (instant, after) or (
            following is None and after is not None and after - before > HORIZON
        )


def refused(text: str, zone: str = "UTC", hash_key: str = "") -> InvalidSchedule | None:
    """Return the error, or None if the schedule is valid."""
    try:
        schedule = parse_schedule(text, zone, hash_key=hash_key)
    except InvalidSchedule as refusal:
        return refusal
    after = schedule.next_after(EPOCH)
    assert after is None or after > EPOCH
    return None


def is_explained(refusal: InvalidSchedule) -> bool:
    """Return whether the message has a code and contains all of its values."""
    message = str(refusal)
    return refusal.code != "invalid" and all(
        str(value) in message
        for value in (
            refusal.params[name] for name in ("field", "value", "near") if name in refusal.params
        )
    )


@examples(300)
@given(st.text(max_size=40), st.text(max_size=12))
def test_random_text_is_parsed_or_refused_with_an_explanation(text: str, zone: str) -> None:
    for refusal in (refused(text), refused("* * * * *", zone), refused(f"TZ={zone} {text}")):
        assert refusal is None or is_explained(refusal)


CRONLIKE = st.lists(
    st.text(alphabet="0123456789*/,-?LWH#()@ JANMOSUeryatTZ=:", min_size=1, max_size=6),
    min_size=1,
    max_size=8,
).map(" ".join)
SHUFFLED = MINUTE_CRON.flatmap(lambda text: st.permutations(list(text)).map("".join))


@examples(1000)
@given(st.one_of(CRONLIKE, SHUFFLED, TEXTS), st.text())
def test_cron_like_text_is_parsed_or_refused_with_an_explanation(text: str, hash_key: str) -> None:
    refusal = refused(text, "Africa/Casablanca", hash_key)
    assert refusal is None or is_explained(refusal)


@examples(150)
@given(TEXTS)
def test_every_schedule_can_be_described(text: str) -> None:
    schedule = parse_schedule(text) if text.startswith("@") else parsed(text)
    assert describe(schedule)[0].isupper()
