"""German and Chinese texts of schedules, targets and ``control``. Errors stay in English."""

# ruff: noqa: RUF001 -- Chinese has its own colon, comma and parentheses

import pickle
from collections.abc import Callable, Iterator
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.utils import translation
from pytest_django import Settings

from django_dcron import control, targets
from django_dcron.db.now import database_now
from django_dcron.diagnosis.lookahead import describe_schedule, translate_problem
from django_dcron.exceptions import (
    InvalidArguments,
    InvalidSchedule,
    InvalidValue,
    NotPossible,
    RetryLater,
    TranslatableError,
)
from django_dcron.jobs import backfill
from django_dcron.jobs.cursors import move_outdated_cursors
from django_dcron.models import Attempt, AuditEntry, Cursor, Job
from django_dcron.policies.alerting import InvalidRule, read_rules
from django_dcron.schedules.describe import describe
from django_dcron.schedules.schedule import parse_schedule
from django_dcron.utils.messages import TranslatableText
from tests.factories import make_job, make_run
from tests.schedules.test_cron_syntax import REFUSALS

LANGUAGES = ("de", "zh-hans")

DESCRIPTIONS = [
    ("30 3 * * *", "Um 03:30", "在 03:30"),
    ("15 30 6,14 * * *", "Um 06:30:15 und 14:30:15", "在 06:30:15、14:30:15"),
    ("0,30 9,17 * * *", "Um 09:00, 09:30, 17:00 und 17:30", "在 09:00、09:30、17:00、17:30"),
    ("* * * * * *", "Jede Sekunde", "每秒"),
    ("* * * * *", "Jede Minute", "每分钟"),
    ("0 * * * *", "Jede Stunde", "每小时"),
    ("*/5 * * * *", "Alle 5 Minuten", "每 5 分钟"),
    ("5/20 * * * *", "Alle 20 Minuten ab Minute 5", "从整点过 5 分起每 20 分钟"),
    ("0 1/3 * * *", "Alle 3 Stunden ab 01:00", "从 01:00 起每 3 小时"),
    ("3/10 * * * * *", "Alle 10 Sekunden ab Sekunde 3", "从整分过 3 秒起每 10 秒"),
    ("0-10 11 * * *", "Jede Minute zwischen 11:00 und 11:10", "在 11:00 至 11:10 之间每分钟"),
    (
        "*/15 8-18 * * *",
        "Alle 15 Minuten, zwischen 08:00 und 18:45",
        "在 08:00 至 18:45 之间，每 15 分钟",
    ),
    ("0 9-17 * * *", "Zur vollen Stunde, zwischen 09:00 und 17:00", "在 09:00 至 17:00 之间，整点"),
    (
        "1-5,10 9-17 * * *",
        "1 bis 5 und 10 Minuten nach der vollen Stunde, zwischen 09:01 und 17:10",
        "在 09:01 至 17:10 之间，整点过 1 至 5、10 分",
    ),
    ("*/5 3,4,6 * * *", "Alle 5 Minuten, in den Stunden 3, 4 und 6", "在 3、4、6 时，每 5 分钟"),
    (
        "5,6,7 10-20 3-4 * * *",
        "In den Sekunden 5 bis 7, in den Minuten 10 bis 20, zwischen 03:10 und 04:20",
        "在 03:10 至 04:20 之间，整点过 10 至 20 分，整分过 5 至 7 秒",
    ),
    ("0 9 * * 1-5", "Um 09:00, montags bis freitags", "每周一至周五，在 09:00"),
    ("@weekly", "Um 00:00, sonntags", "每逢周日，在 00:00"),
    (
        "0 0 13 * 5",
        "Um 00:00, am 13. des Monats sowie freitags",
        "每月 13 日，以及每逢周五，在 00:00",
    ),
    (
        "0 0 */10 * 1#2,5L",
        "Um 00:00, am 1., 11., 21. und 31. des Monats, nur wenn der Tag auf den 2. Montag des "
        "Monats oder den letzten Freitag des Monats fällt",
        "每月 1、11、21、31 日，且须为当月第 2 个周一或当月最后一个周五，在 00:00",
    ),
    (
        "0 0 5-9 1-3 *",
        "Um 00:00, vom 5. bis 9. des Monats, von Januar bis März",
        "每月 5 至 9 日，在 00:00，仅限一月至三月",
    ),
    (
        "0 0 1,15W,L,L-3,LW * *",
        "Um 00:00, am 1., am Werktag (Montag bis Freitag) nächst dem 15., am letzten Tag, am 3. "
        "Tag vor dem letzten und am letzten Werktag (Montag bis Freitag) des Monats",
        "每月 1 日、最接近 15 日的工作日（周一至周五）、最后一天、最后一天之前的第 3 天、"
        "最后一个工作日（周一至周五），在 00:00",
    ),
    (
        "0 0 12 ? 1-3,6 2#1,5L 2030",
        (
            "Um 12:00, am 1. Dienstag des Monats und am letzten Freitag des Monats, im Januar bis "
            "März und Juni, im Jahr 2030"
        ),
        "每逢当月第 1 个周二、当月最后一个周五，在 12:00，仅限一月至三月、六月，仅限 2030 年",
    ),
    (
        "0 0 0 * * ? 2026-2028,2030",
        "Um 00:00, in den Jahren 2026 bis 2028 und 2030",
        "在 00:00，仅限 2026 至 2028、2030 年",
    ),
    ("@every 1h30m", "Im Abstand von 1 Stunde und 30 Minuten", "每隔 1 小时 30 分钟"),
    ("@every 1s", "Im Abstand von 1 Sekunde", "每隔 1 秒"),
    ("@at 2026-12-01T09:00:05", "Einmal, am 2026-12-01 um 09:00:05", "仅一次，2026-12-01 09:00:05"),
]


@pytest.mark.parametrize(("text", "german", "chinese"), DESCRIPTIONS)
def test_schedule_is_described_in_the_language(text: str, german: str, chinese: str) -> None:
    schedule = parse_schedule(text)
    with translation.override("de"):
        assert describe_schedule(schedule) == describe(schedule, translation) == german
        english = describe(schedule)
    with translation.override("zh-hans"):
        assert describe(schedule, translation) == chinese
    assert english not in (german, chinese)


def test_description_includes_the_time_zone() -> None:
    schedule = parse_schedule("30 3 * * *", "Asia/Tokyo")
    with translation.override("de"):
        assert describe(schedule, translation) == "Um 03:30 (Asia/Tokyo)"
    with translation.override("zh-hans"):
        assert describe(schedule, translation) == "在 03:30（Asia/Tokyo）"


def test_translations_do_not_change_djangos_names_of_days_and_months() -> None:
    """A translation in one app applies to the whole project."""
    with translation.override("zh-hans"):
        assert translation.gettext("Monday") == "星期一"
        assert translation.gettext("January") == "一月"


# --- errors -------------------------------------------------------------------------------------


def refusal(text: object, zone: str = "UTC") -> InvalidSchedule:
    with pytest.raises(InvalidSchedule) as caught:
        parse_schedule(text, zone)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("language", LANGUAGES)
def test_schedule_errors_are_translated_and_logged_in_english(language: str) -> None:
    refused = [refusal(text) for text, *_ in REFUSALS]
    refused += [refusal(None), refusal("@daily", "Mars"), refusal("@daily", "Europe/Berlim")]
    refused.append(refusal("@at 2011-12-30T12:00", "Pacific/Apia"))
    english = [str(error) for error in refused]
    with translation.override(language):
        assert [str(error) for error in refused] == english
        messages = [error.translate(translation) for error in refused]
    assert len(messages) > 100
    # A translation may share a part with the English text, but never the whole text.
    assert [text for text, before in zip(messages, english, strict=True) if text == before] == []
    assert [text for text in messages if "allowed" in text or "field" in text or "%(" in text] == []


def test_schedule_errors_in_german_and_chinese() -> None:
    error = refusal("61 * * * *")
    with translation.override("de"):
        assert (
            error.translate(translation)
            == "Minute: 61 liegt außerhalb des Bereichs (erlaubt: 0-59)"
        )
    with translation.override("zh-hans"):
        assert error.translate(translation) == "分钟：61 超出范围（允许：0-59）"
    with translation.override("de"):
        month = refusal("0 0 * FOO *").translate(translation)
        assert month.startswith("Monat: 'FOO' ")
        assert "1-12 oder JAN-DEC" in month
        step = refusal("*/ * * * *").translate(translation)
        assert step.startswith("Minute: ")
        assert "1-59" in step


@pytest.mark.django_db
def test_names_of_runs_and_attempts_are_translated_but_stored_in_english() -> None:
    run = make_run(
        make_job(name="reports"), "succeeded", scheduled_at=datetime(2026, 3, 2, tzinfo=UTC)
    )
    at = "2026-03-02 00:00:00 UTC"
    with translation.override("de"):
        assert str(run) == f"reports vom {at}"
        assert str(Attempt(run=run, number=2)) == f"reports vom {at}, Versuch 2"
        with pytest.raises(NotPossible) as caught:
            control.cancel(run)
        assert str(caught.value).startswith(f"reports at {at} is ")
        assert caught.value.translate(translation).startswith(f"reports vom {at} ")
        again = control.rerun(run)
    assert AuditEntry.objects.get(run_id=again.pk).label == str(again)
    with translation.override("zh-hans"):
        assert str(Attempt(run=run, number=2)) == f"reports（{at}），第 2 次尝试"


def test_schedule_error_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(refusal("61 * * * *")))  # noqa: S301 (our own)
    assert str(again) == "minute: 61 is out of range (allowed: 0-59)"
    with translation.override("de"):
        assert again.translate(translation).startswith("Minute: 61")


@pytest.mark.parametrize(
    "error",
    [
        InvalidValue("until", "%(value)s has passed", value=TranslatableText("100%% of it", day=1)),
        InvalidArguments("%(value)s is no list", field="args", value="100%"),
        InvalidRule("rule %(number)d", number=1),
        NotPossible("100% of it"),
        RetryLater("not now", after=timedelta(minutes=1)),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_can_be_pickled_and_copied_with_their_attributes(
    error: Exception, protocol: int
) -> None:
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy(error)):  # noqa: S301 (our own)
        assert (type(again), str(again), again.args) == (type(error), str(error), error.args)
        assert vars(again).keys() == vars(error).keys()
        if isinstance(again, TranslatableError):
            assert again.translate(translation) == str(error)


def test_text_without_values_keeps_percent_signs() -> None:
    assert str(NotPossible("100% of it")) == "100% of it"
    assert NotPossible("100% of it").translate(translation) == "100% of it"
    assert (
        str(TranslatableText("%(part)d %% of %(whole)s", part=5, whole=TranslatableText("it")))
        == "5 % of it"
    )


def takes(city: str, *, days: int = 7) -> None: ...


def nothing() -> None: ...


def _refused_call(function: Callable[..., None], *args: Any, **kwargs: Any) -> TranslatableError:
    with targets.isolated_registry():
        targets.cron("@daily", name="one")(function)
        with pytest.raises(InvalidArguments) as caught:
            targets.get(f"{__name__}.{function.__name__}").check_arguments(list(args), kwargs)
    return caught.value


def _unknown(key: str) -> TranslatableError:
    with pytest.raises(LookupError) as caught:
        targets.get(key)
    assert isinstance(caught.value, TranslatableError)
    return caught.value


def _refused_by(key: str, *args: Any, **kwargs: Any) -> TranslatableError:
    with pytest.raises(InvalidArguments) as caught:
        targets.get(key).check_arguments(list(args), kwargs)
    return caught.value


@pytest.fixture
def target_errors(settings: Settings) -> list[TranslatableError]:
    settings.DCRON_COMMANDS = ["check", "gone"]
    settings.DCRON_SHELL = {"greet": ["echo", "hello"], "say": ["echo", "{}"]}
    return [
        _refused_call(takes, "Berlin", 1),
        _refused_call(nothing, 1),
        _refused_call(takes, "Berlin", city="Rome"),
        _refused_call(takes, "Berlin", dys=1),
        _refused_call(takes, "Berlin", zzz=1),
        _refused_call(nothing, zzz=1),
        _refused_call(takes),
        _unknown("no.such"),
        _unknown("command:gone"),
        _unknown("command:flush"),
        _unknown("shell:gret"),
        _refused_by("command:check", [1]),
        _refused_by("command:check", stdout=1),
        _refused_by("command:check", "--help"),
        _refused_by("shell:greet", "x"),
        _refused_by("shell:say", x=1),
        _refused_by("shell:say", True),
    ]


@pytest.mark.parametrize("language", LANGUAGES)
def test_errors_of_targets_and_arguments_are_translated(
    target_errors: list[TranslatableError], language: str
) -> None:
    english = [str(error) for error in target_errors]
    with translation.override(language):
        assert [str(error) for error in target_errors] == english
        messages = [error.translate(translation) for error in target_errors]
    assert [
        text for text in messages if text in english or "allowed" in text or "did you" in text
    ] == []


def test_errors_of_targets_in_german(target_errors: list[TranslatableError]) -> None:
    with translation.override("de"):
        messages = {error.translate(translation) for error in target_errors}
    assert [text for text in messages if "'dys'" in text and "Meinten Sie 'days'?" in text]
    assert [text for text in messages if "'shell:gret'" in text and "'shell:greet'" in text]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", "minute: 61 is out of range (allowed: 0-59)"),
        ("de", "Minute: 61 liegt außerhalb des Bereichs (erlaubt: 0-59)"),
        ("zh-hans", "分钟：61 超出范围（允许：0-59）"),
    ],
)
def test_validation_error_of_a_job_is_translated(language: str, expected: str) -> None:
    with translation.override(language), pytest.raises(ValidationError) as caught:
        make_job(schedule="61 * * * *")
    assert caught.value.message_dict["schedule"] == [expected]


RULES: list[Any] = [
    {},
    [1],
    [{"on": "x"}],
    [{"on": "paused", "after": 1}],
    [{"on": "failed", "to": ["x"]}],
    [{"on": "failed", "to": ["ops"], "after": 0}],
    [{"on": "recovered", "to": ["ops"], "after": 0}],
    [{"on": "silent", "to": ["ops"]}],
]


@pytest.mark.parametrize("language", LANGUAGES)
def test_errors_of_alert_rules_are_translated(language: str) -> None:
    for rules in RULES:
        with pytest.raises(InvalidRule) as caught, translation.override(language):
            read_rules(rules, ["ops"], of_job=True)
        english = str(caught.value)
        with translation.override(language):
            message = caught.value.translate(translation)
        assert message != english
        assert english.isascii()
        assert "rule" not in message
        assert "allowed" not in message


# --- errors of control --------------------------------------------------------------------------


def _control_errors(job: Job) -> Iterator[TranslatableError]:
    """Errors of ``control`` for a paused job and a finished run."""
    run = control.trigger(job)
    with pytest.raises(NotPossible) as not_finished:
        control.rerun(run)
    yield not_finished.value
    control.cancel(run)
    with pytest.raises(NotPossible) as finished:
        control.cancel(run)
    yield finished.value
    now = database_now("default")
    with pytest.raises(NotPossible) as no_future_occurrence:
        control.resume(job)
    yield no_future_occurrence.value
    with pytest.raises(InvalidValue) as past_end:
        control.pause(job, until=now - timedelta(days=1))
    yield past_end.value
    with pytest.raises(InvalidValue) as future_start:
        backfill.backfill(job, now + timedelta(hours=1), now + timedelta(hours=2))
    yield future_start.value


@pytest.fixture
def control_errors(db: None) -> list[TranslatableError]:
    job = make_job(name="old", schedule="@every 1h", starts_at=None)
    control.pause(job)
    Job.objects.filter(pk=job.pk).update(schedule="@at 2020-01-01T00:00")
    return list(_control_errors(Job.objects.get(pk=job.pk)))


def test_errors_of_control_in_german(control_errors: list[TranslatableError]) -> None:
    with translation.override("de"):
        messages = [error.translate(translation) for error in control_errors]
        pending = translation.gettext("pending")
    assert pending != "pending"
    assert f"„{pending}“" in messages[0]
    assert "„abgebrochen“" in messages[1]
    assert messages[2].startswith("old ")
    assert "Vergangenheit" in messages[3]
    assert "Zukunft" in messages[4]


@pytest.mark.parametrize("language", LANGUAGES)
def test_errors_of_control_are_english_as_strings(
    control_errors: list[TranslatableError], language: str
) -> None:
    with translation.override(language):
        texts = [(str(error), error.translate(translation)) for error in control_errors]
    assert [english for english, message in texts if english == message] == []
    assert [english for english, _ in texts if not english.isascii()] == []
    assert texts[3][0].startswith("until: ")
    assert texts[4][0].startswith("start: ")


@pytest.mark.django_db
def test_stored_problem_is_english_and_shown_translated() -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).update(schedule="61 * * * *")
    job.refresh_from_db()
    with translation.override("de"):
        move_outdated_cursors(datetime.now(UTC), Job.objects.all())
        stored = Cursor.objects.get().problem
        assert stored == "minute: 61 is out of range (allowed: 0-59)"
        assert (
            translate_problem(job, stored)
            == "Minute: 61 liegt außerhalb des Bereichs (erlaubt: 0-59)"
        )
        assert translate_problem(job, "something else") == "something else"
        assert translate_problem(job, "") == ""


@pytest.mark.django_db
def test_command_line_is_english_in_any_language(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.LANGUAGE_CODE = "de"
    with translation.override("de"):
        call_command("dcron", "next", "*/5 * * * *")
    assert "Every 5 minutes" in capsys.readouterr().out
