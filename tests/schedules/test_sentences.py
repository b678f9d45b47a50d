"""Test that English sentences become the schedule that they mean, and that nothing is guessed."""

import re
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.schedules.sentences import (
    MAX_LENGTH,
    replace_sentences,
    schedule_of_sentence,
    suggest_single_time,
)
from tests.refusals import refusal

DOCS = Path(__file__).parents[2] / "docs/reference/schedules.md"
WORDS = re.split(
    " ",
    "every each on the at of in and to first second third last 1st 15th 31st day days daily month "
    "monthly weekday weekend working monday mondays fri january quarter year hour minutes 5 90 "
    "9:30 9 noon midnight 6pm am pm, - hourly 2 other weeks from 2026-01-02 "
    "morning evening night of",
)


@pytest.mark.parametrize(
    ("sentence", "schedule"),
    [
        ("Every weekday at 9:30 a.m.", "30 9 * * MON-FRI"),
        ("daily at 3:30", "30 3 * * *"),
        ("at noon", "0 12 * * *"),
        ("each day at 12am and at 12 pm", "0 0,12 * * *"),
        ("every day", "0 0 * * *"),
        ("weekends at 10 PM", "0 22 * * SAT,SUN"),
        ("on monday, wednesday and friday at 9 o'clock", "0 9 * * MON,WED,FRI"),
        ("Tuesdays to Saturdays at 8", "0 8 * * TUE-SAT"),
        ("weekly on Thursday at 7:05", "5 7 * * THU"),
        ("mon \N{EN DASH} fri at 8:15 and 17:45", "15 8 * * MON-FRI\n45 17 * * MON-FRI"),
        ("Friday through Monday at 1", "0 1 * * FRI,SAT,SUN,MON"),
        ("the first Monday of every month", "0 0 * * 1#1"),
        ("on the second and fourth Friday of the month at 6", "0 6 * * 5#2,5#4"),
        ("last day of the month at 23:59", "59 23 L * *"),
        ("monthly on the 3rd at 4", "0 4 3 * *"),
        ("last working day of the month", "0 0 WD#L * ?"),
        ("first weekday of the month", "0 0 1W * ?"),
        ("last weekday of the month", "0 0 LW * ?"),
        ("every month at 5", "0 5 1 * *"),
        ("quarterly", "0 0 1 JAN,APR,JUL,OCT *"),
        ("every 24 December at 18:00", "0 18 24 DEC *"),
        ("on March 1st", "0 0 1 MAR *"),
        ("every Monday at 9 in January and July", "0 9 * JAN,JUL MON"),
        ("every weekday at nine", "0 9 * * MON-FRI"),
        ("every fifteen minutes", "*/15 * * * *"),
        ("every minute", "* * * * *"),
        ("every 5 minutes on weekends", "*/5 * * * SAT,SUN"),
        ("every 5s", "@every 5s"),
        ("Each 1h30m", "@every 1h30m"),
        ("every 7 minutes", "@every 7m"),
        ("every 36 hours", "@every 36h"),
        ("every 30 seconds", "*/30 * * * * *"),
        ("every 30 sec", "*/30 * * * * *"),
        ("every 5 min on weekdays", "*/5 * * * MON-FRI"),
        ("every 2 hrs", "0 */2 * * *"),
        ("every half hour", "*/30 * * * *"),
        ("noon on weekdays", "0 12 * * MON-FRI"),
        ("every 10 minutes between 9 and 17 on weekdays", "*/10 9-16 * * MON-FRI"),
        ("every 15 minutes on weekdays from 8:00 to 18:00", "*/15 8-17 * * MON-FRI"),
        ("every minute from 9am until noon", "* 9-11 * * *"),
        ("every 5 minutes between 20:00 and midnight", "*/5 20-23 * * *"),
        ("every hour between 9 and 17 on weekdays", "0 9-17 * * MON-FRI"),
        ("every 2 hours from 8 to 18", "0 8-18/2 * * *"),
        ("every morning at 7", "0 7 * * *"),
        ("every day at 7:30 in the morning", "30 7 * * *"),
        ("every weekday afternoon at 1 and 5:30pm", "0 13 * * MON-FRI\n30 17 * * MON-FRI"),
        ("Fridays at 8 in the evening", "0 20 * * FRI"),
        ("every evening at 20:15", "15 20 * * *"),
        ("nightly at 2", "0 2 * * *"),
        ("every night at 11", "0 23 * * *"),
        ("Friday night at 11:30", "30 23 * * FRI"),
        ("every evening at 6 and 8:30", "0 18 * * *\n30 20 * * *"),
        ("every quarter on the 1st at 6", "0 6 1 JAN,APR,JUL,OCT *"),
        ("the last day of every quarter", "0 0 L MAR,JUN,SEP,DEC *"),
        ("second Tuesday at 9", "0 9 * * 2#2"),
        ("on the last Friday at 17:00", "0 17 * * 5L"),
        ("every second", "* * * * * *"),
        ("hourly at minute 15", "15 * * * *"),
        ("weekdays 9:30", "30 9 * * MON-FRI"),
        ("Mondays 9:00 and 6 pm", "0 9,18 * * MON"),
        (
            "every 2 weeks on Friday 09:00 from 2026-01-02",
            "@rrule 2026-01-02T09:00 FREQ=WEEKLY;INTERVAL=2;BYDAY=FR",
        ),
    ],
)
def test_sentence_becomes_schedule(sentence: str, schedule: str) -> None:
    assert schedule_of_sentence(sentence) == schedule
    parse_schedule(schedule)


WEDNESDAY = date(2026, 1, 7)


@pytest.mark.parametrize(
    ("sentence", "schedule"),
    [
        (
            "every 2 weeks on Friday 09:00",
            "@rrule 2026-01-09T09:00 FREQ=WEEKLY;INTERVAL=2;BYDAY=FR",
        ),
        ("every second Friday", "@rrule 2026-01-09T00:00 FREQ=WEEKLY;INTERVAL=2;BYDAY=FR"),
        ("Every other Tuesday at 7", "@rrule 2026-01-13T07:00 FREQ=WEEKLY;INTERVAL=2;BYDAY=TU"),
        ("biweekly on Wednesday", "@rrule 2026-01-07T00:00 FREQ=WEEKLY;INTERVAL=2;BYDAY=WE"),
        (
            "every three weeks on Monday and Thursday at 8 starting 2026-02-03",
            "@rrule 2026-02-05T08:00 FREQ=WEEKLY;INTERVAL=3;BYDAY=MO,TH",
        ),
        (
            "every two weeks at 8:15 and 20:45",
            "@rrule 2026-01-07T08:15 FREQ=WEEKLY;INTERVAL=2;BYDAY=WE\n"
            "@rrule 2026-01-07T20:45 FREQ=WEEKLY;INTERVAL=2;BYDAY=WE",
        ),
        ("every other day at 9am", "@rrule 2026-01-07T09:00 FREQ=DAILY;INTERVAL=2"),
        (
            "every 10 days at 9 counted from 2026-01-02",
            "@rrule 2026-01-02T09:00 FREQ=DAILY;INTERVAL=10",
        ),
    ],
)
def test_every_second_week_counts_from_date(sentence: str, schedule: str) -> None:
    assert schedule_of_sentence(sentence, WEDNESDAY) == schedule
    parse_schedule(schedule)


@pytest.mark.parametrize(
    "sentence",
    [
        "every 2 weeks on Friday at 25:00",
        "every 2 weeks on Friday from 2026-02-30",
        "every 2 weeks from 9999-12-31",
        "every 0 weeks",
        "every other weekday at 9",
        "every 2 days on Friday",
        "every 2 weeks on Friday in May",
        "every week from 2026-01-02",
        "every day from 9:00 to 17:00",
        "Monday 9:00 and Friday 17:00",
    ],
)
def test_nothing_is_guessed_with_date(sentence: str) -> None:
    assert schedule_of_sentence(sentence, WEDNESDAY) is None


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        "in January",
        "every day at 25:00",
        "every day at 13pm",
        "every day at 9 or so",
        "every January at nine thirty",
        "every day at nine 30",
        "every weekday but Monday at 9",
        "every other day",
        "every second Friday at 9",
        "every 3 days",
        "every 0 minutes",
        "every 7 minutes on weekdays",
        "every week",
        "every 10 minutes between 9:30 and 17:00",
        "every 10 minutes between 22 and 6",
        "every hour between 1 and 5pm",
        "every 15 minutes between 9am and 5",
        "every 10 minutes between 9 and 9",
        "every 7 minutes between 9 and 17",
        "every hour between 9 and 25",
        "every morning",
        "every morning at 13:00",
        "every evening at 7am",
        "every night at 7",
        "at 9 in the morning and 8 in the evening",
        "every Friday night at 1",
        "every Monday night at midnight",
        "every Monday night at 11 and 1",
        "last day of the month at night at 1",
        "every weekday at 8 and 6 in the evening",
        "every day at 6 and 6 in the evening",
        "every day at 8 in the morning and 5",
        "Monday evening and Friday at 8",
        "Monday evening to Friday at 8",
        "every evening at 06:00",
        "every night at 08:00",
        "every second day of the quarter",
        "31st day of the quarter",
        "sixth Monday of the month",
        "40th of the month",
        "hourly at minute 75",
        "every May 1st in June",
        "30 9 * * MON-FRI",
        "@daily",
        "every day " * MAX_LENGTH,
    ],
)
def test_nothing_is_guessed(sentence: str) -> None:
    assert schedule_of_sentence(sentence) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("first monday of the month at 10", "sentence"),  # as many words as cron has fields
        ("every day at 9", "sentence"),
        ("every workday at nine", "working_days"),
        ("every working day at 9:00 until June", "unknown_sentence"),
        ("every morning", "unknown_sentence"),
        ("every weekday morning", "unknown_sentence"),
        ("first working day of the quarter", "unknown_sentence"),
        ("every weekday at 9 except holidays", "unknown_sentence"),
        ("last working day of the month 18:00 Berlin", "unknown_word"),
        ("1st and 15th of every month at 6:00", "sentence"),
        ("mon-fri at 9:00", "sentence"),
        ("* * *", "field_count"),
        ("9", "field_count"),
        ("once a day at 9", "unknown_sentence"),
        ("every 2 weeks from 2026-01-02 Berlin", "unknown_word"),
        ("9:30 except 2026-12-24", "field_count"),
        ("not on 2026-12-24", "unknown_sentence"),
        ("mondays before 2026-12-24 at 9:00", "unknown_sentence"),
        ("next monday at 9:00", "single_time"),
        ("today at noon", "single_time"),
        ("tonight", "single_time"),
    ],
)
def test_error_says_whether_text_is_a_sentence(text: str, code: str) -> None:
    with pytest.raises(InvalidSchedule) as info:
        parse_schedule(text)
    assert info.value.code == code


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("once on monday at 9:00", "@at YYYY-MM-DDT09:00"),
        ("tomorrow at 9", "@at YYYY-MM-DDT09:00"),
        ("tomorrow at 14:30", "@at YYYY-MM-DDT14:30"),
        ("Tomorrow 14:30", "@at YYYY-MM-DDT14:30"),
        ("once tomorrow at 14:30", "@at YYYY-MM-DDT14:30"),
        ("once at 14:30", "@at YYYY-MM-DDT14:30"),
        ("once at 14:30:20 tomorrow", "@at YYYY-MM-DDTHH:MM"),
        ("next friday at 14:30", "@at YYYY-MM-DDT14:30"),
        ("tomorrow at 6 and 7", "@at YYYY-MM-DDTHH:MM"),
        ("in 2 hours", "@at YYYY-MM-DDTHH:MM"),
        ("in half an hour", "@at YYYY-MM-DDTHH:MM"),
        ("on 24.12.2026 at 9", "@at YYYY-MM-DDTHH:MM"),
        ("on 24.12.2026 at 14:30", "@at YYYY-MM-DDTHH:MM"),
        ("once on 12/24/2026 at 14:30", "@at YYYY-MM-DDTHH:MM"),
        ("2026-12-24", "@at 2026-12-24THH:MM"),
        ("once on 2026-12-24", "@at 2026-12-24THH:MM"),
        ("once on 2026-12-24 at 9 and 10", "@at YYYY-MM-DDTHH:MM"),
        ("2026-12-24 at 25:00", "@at YYYY-MM-DDTHH:MM"),
        ("2026-12-24 14:30:15", "@at 2026-12-24T14:30:15"),
        ("2026-12-24T14:30:00Z", "@at 2026-12-24T14:30:00Z"),
        ("2026-12-24t14:30+01:00", "@at 2026-12-24T14:30+01:00"),
        ("2026-02-30T14:30:00Z", "@at YYYY-MM-DDTHH:MM"),
        ("once on 2026-12-24 at 14:30 Berlin", "@at YYYY-MM-DDTHH:MM"),
        ("once on 2026-12-24 in Berlin", "@at YYYY-MM-DDTHH:MM"),
        ("2026-12-24 midnight", "@at YYYY-MM-DDTHH:MM"),
        ("2026-12-24 tonight", "@at YYYY-MM-DDTHH:MM"),
        ("2026-12-24 end of day", "@at YYYY-MM-DDTHH:MM"),
        ("2026-12-24 at thirteen", "@at YYYY-MM-DDTHH:MM"),
        ("once on 2026-12-24 or 2026-12-25 at 14:30", "@at YYYY-MM-DDTHH:MM"),
        ("on 2026-02-30 at 9", "@at YYYY-MM-DDTHH:MM"),
        ("on 2026-12-24 at 6pm", "@at 2026-12-24T18:00"),
        ("2026-12-24 18:30", "@at 2026-12-24T18:30"),
        ("once 2026-12-24T18:30", "@at 2026-12-24T18:30"),
        ("Friday 4 December 2026 18:00", "@at 2026-12-04T18:00"),
        ("Friday, December 4th, 2026 at 6pm", "@at 2026-12-04T18:00"),
        ("once on the 4th of Dec 2026 at 18:00", "@at 2026-12-04T18:00"),
        ("Friday 2026-12-04 18:00", "@at 2026-12-04T18:00"),
        ("Monday 4 December 2026 18:00", "@at YYYY-MM-DDTHH:MM"),
        ("31 November 2026 18:00", "@at YYYY-MM-DDTHH:MM"),
        ("tonight at 9", "@at YYYY-MM-DDTHH:MM"),
        ("next friday", "@at YYYY-MM-DDTHH:MM"),
        ("next tomorrow at 9", "@at YYYY-MM-DDTHH:MM"),
    ],
)
def test_error_of_a_single_time_shows_how_to_run_once(text: str, schedule: str) -> None:
    with refusal(InvalidSchedule, "single_time", value=repr(text), schedule=schedule):
        parse_schedule(text)
    assert "YYYY" in schedule or "HH" in schedule or parse_schedule(schedule).at


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("today at noon", "2026-12-02T12:00"),
        ("tomorrow at 9", "2026-12-03T09:00"),
        ("Once next Friday at 18:00", "2026-12-04T18:00"),
        ("next Tuesday 6:30 pm", "2026-12-08T18:30"),
        ("next Wednesday at 9", "2026-12-09T09:00"),
        ("once on wednesday at 9", "2026-12-09T09:00"),
        ("next Friday", "2026-12-04"),
        ("next week at 9", None),
        ("once at 9", None),
        ("tonight at 9", None),
        ("2026-12-24 at 9", None),
        ("next friday at 9 in Berlin", None),
        ("next friday at 9 and 10", None),
    ],
)
def test_error_of_a_single_time_on_a_near_day_has_its_date(text: str, moment: str | None) -> None:
    wednesday = date(2026, 12, 2)
    if moment is None:
        assert replace_sentences(text, wednesday) == text
        return
    schedule = suggest_single_time(text, wednesday)
    assert schedule.startswith(f"@at {moment}")
    with refusal(InvalidSchedule, "single_time", value=repr(text), schedule=schedule):
        replace_sentences(f"@daily\n{text}", wednesday)


def test_error_names_the_only_unknown_word() -> None:
    with pytest.raises(InvalidSchedule) as info:
        parse_schedule("last working day of the month 18:00 Berlin")
    assert "unknown word 'Berlin'" in str(info.value)


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("*/90 * * * *", "@every 90m"),
        ("0 */36 * * *", "@every 36h"),
        ("*/75 * * * * *", "@every 75s"),
    ],
)
def test_error_about_a_long_step_names_the_interval(text: str, every: str) -> None:
    with pytest.raises(InvalidSchedule, match=f"use {every}"):
        parse_schedule(text)


def test_sentences_of_docs_are_true() -> None:
    table = DOCS.read_text().partition("| sentence | saved as |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([^|`]+) \| `([^`]+)` \|$", table, re.MULTILINE)
    assert len(rows) > 5
    assert {sentence: schedule_of_sentence(sentence) for sentence, _ in rows} == dict(rows)


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join))
def test_any_sentence_yields_valid_schedule_or_none(sentence: str) -> None:
    found = schedule_of_sentence(sentence, WEDNESDAY)
    if found is None:
        return
    parse_schedule(found)
    with pytest.raises(InvalidSchedule):  # the form doesn't reinterpret valid schedule text
        parse_schedule(sentence)
