"""Jobs as a document: what is written is what is read, and what is wrong with a document is named."""

import builtins
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db.models import CharField, ForeignKey

from django_dcron import control
from django_dcron.models import Calendar, Job
from django_dcron.sync import portable
from django_dcron.sync.portable import FIELDS, NAMES, Syntax, Unreadable
from tests.factories import make_idle_job

FULL: dict[str, Any] = {
    "namespace": "shop",
    "name": "full job",
    "description": "Zwei Zeilen:\nyes, 1e3, 日本 'quoted' \"too\" # no comment",
    "target": "tests.app.tasks.echo",
    "args": [1, 2.5],
    "kwargs": {"city": "Ulm", "n": [1, None]},
    "schedule": "H 3 * * MON-FRI",
    "timezone": "Europe/Berlin",
    "starts_at": datetime(2027, 1, 1, 12, 30, 1, 5, tzinfo=UTC),
    "ends_at": datetime(2050, 1, 1, tzinfo=UTC),
    "after": {"plain": "failed"},
    "calendar": Calendar(name="closed", dates="12-25"),
    "calendar_policy": "next_day",
    "jitter": timedelta(seconds=1, microseconds=3),
    "enabled": False,
    "pause_reason": "no",
    "paused_until": datetime(2090, 1, 1, tzinfo=UTC),
    "misfire_policy": "run_all",
    "misfire_grace": timedelta(days=400, hours=3),
    "catchup_limit": 7,
    "overlap_policy": "queue_all",
    "start_deadline": timedelta(minutes=90),
    "queue": "1e3",
    "priority": 0,
    "timeout": timedelta(seconds=90),
    "max_attempts": 5,
    "retry_backoff": timedelta(0),
    "retry_backoff_factor": 3.0,
    "retry_backoff_max": timedelta(days=2),
    "retry_jitter": 0.25,
    "retry_on": ["OSError"],
    "never_retry_on": ["ValueError"],
    "pause_after_failures": 3,
    "alerts": [],
    "keep_for": timedelta(days=30),
    "keep_failed_for": timedelta(days=90),
    "keep_runs": 1000,
    "tags": ["on", "2026-01-01", "1:30"],
    "declared": {"schedule": "@daily", "timeout": "P0DT00H01M30S"},
}
MINIMAL = {"name": "a", "target": "tests.app.tasks.ok", "schedule": "@daily"}


def document(*jobs: Any, **fields: Any) -> str:
    return json.dumps({"format": "django-dcron", "version": 1, "jobs": list(jobs)} | fields)


def definition(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in NAMES}


@pytest.mark.django_db
@pytest.mark.parametrize("syntax", Syntax)
def test_what_is_written_is_what_is_read(syntax: Syntax) -> None:
    """And builds the same jobs elsewhere."""
    control.save_calendar(Calendar(name="closed", dates="12-25"))
    make_idle_job(name="plain")
    control.save(Job(**FULL))
    before = {job.hash_key: definition(job) for job in Job.objects.all()}
    text = portable.write(Job.objects.all(), syntax)
    Job.objects.all().delete()
    reading = portable.read(text, syntax)
    assert reading.problems == []
    for entry in reading.entries:
        control.save(entry.job())
    assert {job.hash_key: definition(job) for job in Job.objects.all()} == before
    assert portable.write(Job.objects.all(), syntax) == text


def test_the_test_has_a_value_that_is_no_default_for_every_field() -> None:
    """A field added to a job is in the format by itself; here it has to be thought of."""
    assert list(FULL) == list(NAMES)
    assert not [field.name for field in FIELDS if FULL[field.name] == field.get_default()]
    relations = [field for field in FIELDS if isinstance(field, ForeignKey)]
    assert {type(each.target_field) for each in relations} == {CharField}, "a number means nothing elsewhere"


@pytest.mark.django_db
def test_a_calendar_is_there_with_the_jobs_that_name_it() -> None:
    control.save_calendar(Calendar(name="open", dates="12-24"))
    closed = control.save_calendar(Calendar(name="closed", dates="SAT\n12-25", description="Ask Ada."))
    jobs = [make_idle_job(name=name, calendar=closed) for name in "ab"]
    text = portable.write(jobs)
    written = json.loads(text)
    assert list(written) == ["format", "version", "calendars", "jobs"]
    assert written["calendars"] == [{"name": "closed", "description": "Ask Ada.", "dates": "SAT\n12-25"}]
    assert [job["calendar"] for job in written["jobs"]] == ["closed", "closed"]
    assert {each.name for each in Calendar._meta.concrete_fields} == {*written["calendars"][0], "version"}
    Job.objects.all().delete()
    Calendar.objects.all().delete()
    reading = portable.read(text)
    assert (reading.problems, reading.calendars.problems) == ([], [])
    assert reading.entries[0].job().calendar_dates == "SAT\n12-25"


@pytest.mark.django_db
def test_a_calendar_that_is_not_in_the_document_has_to_be_here() -> None:
    control.save_calendar(Calendar(name="closed", dates="12-25"))
    text = document(MINIMAL | {"calendar": "closed"}, MINIMAL | {"name": "b", "calendar": "open"})
    reading = portable.read(text)
    (entry,) = reading.entries
    assert portable.definition_of(entry.job())["calendar"] == "closed"
    (problem,) = reading.problems
    assert str(problem) == 'b: calendar: "open": there is no such calendar, neither here nor in the document'
    (problem,) = portable.read(document(MINIMAL | {"calendar": 5})).problems
    assert str(problem) == "a: calendar: 5: allowed: text, in quotes"


@pytest.mark.django_db
def test_every_problem_of_the_calendars_is_told_at_once() -> None:
    good = {"name": "good", "dates": "12-25"}
    items = [
        good,
        "nonsense",
        {"name": 5},
        {"name": "twice", "dates": "12-25"},
        {"name": "a/b", "dates": "x"},
    ]
    items.append(items[3])
    reading = portable.read(document(MINIMAL | {"calendar": "twice"}, calendars=items)).calendars
    assert [*reading.sound] == ["good"]
    told = [str(problem) for problem in reading.problems]
    assert told[:3] == [
        'calendar 2: "nonsense" is no object with fields',
        "calendar 3: name: 5: allowed: text, in quotes",
        "calendar 3: dates is missing",
    ]
    assert told[3].startswith('calendar a/b: name: "a/b": Use letters')
    assert told[-1] == "calendar twice: it is there 2 times"


@pytest.mark.django_db
def test_the_format_is_stable() -> None:
    job = Job(**MINIMAL, timeout=timedelta(minutes=90), starts_at=datetime(2027, 1, 1, tzinfo=UTC))
    later = Job(**MINIMAL | {"namespace": "a", "name": "b"})
    text = portable.write([job, later])
    assert text.startswith(
        '{\n  "format": "django-dcron",\n  "version": 1,\n  "jobs": [\n    {\n      "namespace": "a"'
    )
    assert text.endswith("}\n")
    first, second = json.loads(text)["jobs"]
    assert (first["name"], second["name"]) == ("b", "a")
    assert (second["timeout"], second["starts_at"]) == ("1h30m", "2027-01-01T00:00:00Z")
    assert list(second) == list(NAMES)


@pytest.mark.django_db
@pytest.mark.parametrize("syntax", Syntax)
def test_no_document_steers_a_terminal(syntax: Syntax) -> None:
    description = "a\x1b[31mb\x9b31mc\x7fd"
    text = portable.write([make_idle_job(description=description)], syntax)
    assert not {*text} & {"\x1b", "\x9b", "\x7f"}
    (entry,) = portable.read(text, syntax).entries
    assert entry.values["description"] == description


@pytest.mark.django_db
def test_what_is_not_mentioned_is_at_its_default() -> None:
    (entry,) = portable.read(document(MINIMAL)).entries
    assert entry.key == ("default", "a")
    assert set(entry.values) == {"namespace", "name", "target", "schedule"}
    assert entry.job().max_attempts == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"timeuot": "1m"}, 'a: timeuot: "1m": there is no such field; did you mean timeout?'),
        ({"id": 7}, "a: id: 7: there is no such field"),
        ({"max_attempts": "three"}, 'a: max_attempts: "three": allowed: a whole number'),
        ({"max_attempts": True}, "a: max_attempts: true: allowed: a whole number"),
        ({"max_attempts": 0}, "a: max_attempts: 0: Ensure this value is greater than or equal to 1."),
        ({"max_attempts": None}, "a: max_attempts: null: it has to have a value"),
        ({"retry_jitter": "much"}, 'a: retry_jitter: "much": allowed: a number'),
        ({"enabled": "yes"}, 'a: enabled: "yes": allowed: true or false'),
        ({"timeout": 90}, 'a: timeout: 90: allowed: a duration such as "90s", "1h30m" or "2d"'),
        ({"timeout": "soon"}, 'a: timeout: "soon": allowed: a duration such as "90s", "1h30m" or "2d"'),
        ({"starts_at": "noon"}, 'a: starts_at: "noon": allowed: a time such as 2026-12-01T09:00:00Z'),
        ({"starts_at": "2027-01-01T00:00"}, "needs its offset, such as 2026-12-01T09:00:00Z"),
        ({"starts_at": "0001-01-01T00:00:00+14:00"}, "allowed: a time in the years 1970 to 2199"),
        ({"description": "a\0b"}, 'a: description: "a\\u0000b": it has a NUL'),
        ({"description": "\ud800"}, "surrogates not allowed"),
        ({"args": ["\0"]}, "it has a NUL"),
        ({"args": json.loads("[" * 40 + "]" * 40)}, "it is nested too deep"),
        ({"schedule": "61 * * * *"}, 'a: schedule: "61 * * * *": '),
        ({"schedule": 5}, "a: schedule: 5: allowed: text, in quotes"),
        ({"timezone": "Europe/Berlim"}, "did you mean Europe/Berlin"),
        ({"target": "tests.app.tasks.okk"}, 'a: target: "tests.app.tasks.okk": '),
        ({"args": {}}, "a: args: {}: {} is not a JSON list."),
        ({"tags": "billing"}, 'a: tags: "billing": "billing" is not a JSON list of texts.'),
        ({"name": None}, "job 1: name: null: it has to have a value"),
        ({"namespace": "shop", "queue": "a b"}, 'shop/a: queue: "a b": '),
        ({"description": "x" * 300, "queue": 3 * ["y" * 99]}, "..."),
    ],
)
def test_what_is_wrong_names_job_field_and_value(fields: dict[str, Any], said: str) -> None:
    good = MINIMAL | {"name": "good"}
    reading = portable.read(document(MINIMAL | fields, good))
    assert [entry.key[1] for entry in reading.entries] == ["good"]
    (problem,) = reading.problems
    assert said in str(problem)


@pytest.mark.django_db
def test_every_problem_is_told_at_once() -> None:
    items = [{"target": 3}, "nonsense", MINIMAL, MINIMAL | {"description": "again"}]
    reading = portable.read(document(*items))
    assert reading.entries == []
    assert [str(problem) for problem in reading.problems] == [
        "job 1: target: 3: allowed: text, in quotes",
        "job 1: name is missing",
        "job 1: schedule is missing",
        'job 2: "nonsense" is no object with fields',
        "default/a: it is there 2 times",
    ]


@pytest.mark.parametrize(
    ("text", "syntax", "said"),
    [
        ("{", Syntax.JSON, "It is not JSON: Expecting"),
        ("[" * 100_000, Syntax.JSON, "It is not JSON: "),
        ("a: [", Syntax.YAML, "It is not YAML: while parsing"),
        (
            "!!python/object/apply:os.system [ls]",
            Syntax.YAML,
            "It is not YAML: could not determine a constructor",
        ),
        ("[]", Syntax.JSON, 'It is no export of jobs: "format" has to be "django-dcron".'),
        ('{"format": "other"}', Syntax.JSON, '"format" has to be'),
        (document(version=2), Syntax.JSON, '"version" is 2; this release reads 1'),
        (document(jobs={}), Syntax.JSON, '"jobs" has to be a list.'),
        (document(calendars={}), Syntax.JSON, '"calendars" has to be a list.'),
        (document(job=[]), Syntax.JSON, '"job" is not known'),
    ],
)
def test_a_document_that_makes_no_sense(text: str, syntax: Syntax, said: str) -> None:
    with pytest.raises(Unreadable) as refused:
        portable.read(text, syntax)
    assert said in str(refused.value)


@pytest.mark.django_db
def test_yaml_by_hand() -> None:
    """What it makes of plain words is either what is meant, or refused."""
    text = """
format: django-dcron
version: 1
jobs:
  - {name: a, target: tests.app.tasks.ok, schedule: "@daily", starts_at: 2027-01-01T00:00:00Z, tags: [x]}
  - {name: b, target: tests.app.tasks.ok, schedule: "@daily", description: on}
  - {name: c, target: tests.app.tasks.ok, schedule: "@daily", kwargs: {1: 2}}
  - {name: d, target: tests.app.tasks.ok, schedule: "@daily", args: [2027-01-01]}
"""
    reading = portable.read(text, Syntax.YAML)
    (entry,) = reading.entries
    assert entry.values["starts_at"] == datetime(2027, 1, 1, tzinfo=UTC)
    assert [(problem.job, problem.field) for problem in reading.problems] == [
        ("b", "description"),
        ("c", "kwargs"),
        ("d", "args"),
    ]
    assert "allowed: what JSON can hold" in str(reading.problems[1])


def test_without_pyyaml_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without_yaml(name: str, *args: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return original(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_yaml)
    for attempt in (lambda: portable.write([], Syntax.YAML), lambda: portable.read("", Syntax.YAML)):
        with pytest.raises(ImproperlyConfigured, match=r"pip install django-dcron\[yaml\]"):
            attempt()
    assert json.loads(portable.write([]))["jobs"] == []
