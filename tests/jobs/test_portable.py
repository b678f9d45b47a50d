"""Jobs as a document: a round trip preserves them, and each error in a document is reported."""

import builtins
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db.models import CharField, ForeignKey

from django_dcron import control
from django_dcron.jobs import portable
from django_dcron.jobs.portable import DocumentSyntax, UnreadableDocument
from django_dcron.jobs.representation import PORTABLE_JOB_FIELDS, portable_document
from django_dcron.models import Calendar, Job, Limit
from tests.factories import make_idle_job

FULL: dict[str, Any] = {
    "namespace": "shop",
    "name": "full job",
    "description": "Zwei Zeilen:\nyes, 1e3, 日本 'quoted' \"too\" # no comment",
    "target": "tests.app.tasks.echo",
    "args": [1, 2.5],
    "kwargs": {"city": "Ulm", "n": [1, None]},
    "schedule": "H 3 * * MON-FRI\n@rrule 2026-01-02T09:00 FREQ=WEEKLY;INTERVAL=2;BYDAY=FR",
    "timezone": "Europe/Berlin",
    "starts_at": datetime(2027, 1, 1, 12, 30, 1, 5, tzinfo=UTC),
    "ends_at": datetime(2050, 1, 1, tzinfo=UTC),
    "after": {"plain": "failed"},
    "calendar": Calendar(name="closed", dates="only MON-FRI 08:00-18:00\n12-25"),
    "calendar_policy": "window_end",
    "jitter": timedelta(seconds=1, microseconds=3),
    "enabled": False,
    "pause_reason": "no",
    "paused_until": datetime(2090, 1, 1, tzinfo=UTC),
    "misfire_policy": "run_all",
    "misfire_grace": timedelta(days=400, hours=3),
    "catchup_limit": 7,
    "overlap_policy": "queue_all",
    "limit": Limit(name="api", max_running=3),
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
    "declared": {"schedule": "@daily", "timeout": "1m30s"},
}
MINIMAL = {"name": "a", "target": "tests.app.tasks.ok", "schedule": "@daily"}
NAMES = [field.name for field in PORTABLE_JOB_FIELDS]


def document(*jobs: Any, **fields: Any) -> str:
    return json.dumps({"format": "django-dcron", "version": 1, "jobs": list(jobs)} | fields)


def problems_of(
    reading: portable.DocumentReading | portable.DocumentCalendars,
) -> list[tuple[str, str, str]]:
    return [(problem.job, problem.field, problem.code) for problem in reading.problems]


def definition(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in NAMES}


@pytest.mark.django_db
@pytest.mark.parametrize("syntax", DocumentSyntax)
def test_written_document_reads_back_to_the_same_jobs(syntax: DocumentSyntax) -> None:
    """The document can create the same jobs in another database."""
    control.save_calendar(Calendar(name="closed", dates="12-25"))
    control.save_limit(Limit(name="api", max_running=3))
    make_idle_job(name="plain")
    control.save(Job(**FULL))
    before = {job.hash_key: definition(job) for job in Job.objects.all()}
    text = portable.write_document(Job.objects.all(), syntax)
    Job.objects.all().delete()
    reading = portable.read_document(text, syntax)
    assert reading.problems == []
    for entry in reading.entries:
        control.save(entry.job())
    assert {job.hash_key: definition(job) for job in Job.objects.all()} == before
    assert portable.write_document(Job.objects.all(), syntax) == text


def test_full_job_has_a_value_other_than_the_default_for_every_field() -> None:
    """The format includes new fields automatically. ``FULL`` must get a value for each of them."""
    assert list(FULL) == NAMES
    fields = [field.model_field for field in PORTABLE_JOB_FIELDS]
    assert not [field.name for field in fields if FULL[field.name] == field.get_default()]
    relations = [field for field in fields if isinstance(field, ForeignKey)]
    assert {type(each.target_field) for each in relations} == {CharField}, (
        "numeric keys differ between databases"
    )


@pytest.mark.django_db
def test_document_contains_the_calendars_of_its_jobs() -> None:
    control.save_calendar(Calendar(name="open", dates="12-24"))
    closed = control.save_calendar(
        Calendar(name="closed", dates="SAT\n12-25", description="Ask Ada.")
    )
    jobs = [make_idle_job(name=name, calendar=closed) for name in "ab"]
    text = portable.write_document(jobs)
    written = json.loads(text)
    assert list(written) == ["format", "version", "calendars", "jobs"]
    assert written["calendars"] == [
        {"name": "closed", "description": "Ask Ada.", "dates": "SAT\n12-25"}
    ]
    assert [job["calendar"] for job in written["jobs"]] == ["closed", "closed"]
    assert {each.name for each in Calendar._meta.concrete_fields} == {
        *written["calendars"][0],
        "version",
    }
    Job.objects.all().delete()
    Calendar.objects.all().delete()
    reading = portable.read_document(text)
    assert (reading.problems, reading.calendars.problems) == ([], [])
    assert reading.entries[0].job().calendar_dates == "SAT\n12-25"


@pytest.mark.django_db
def test_calendar_missing_from_document_and_database_is_a_problem() -> None:
    control.save_calendar(Calendar(name="closed", dates="12-25"))
    text = document(MINIMAL | {"calendar": "closed"}, MINIMAL | {"name": "b", "calendar": "open"})
    reading = portable.read_document(text)
    (entry,) = reading.entries
    assert portable_document(entry.job())["calendar"] == "closed"
    assert problems_of(reading) == [("b", "calendar", "unknown_calendar")]
    assert reading.problems[0].value == "open"
    numbered = portable.read_document(document(MINIMAL | {"calendar": 5}))
    assert problems_of(numbered) == [("a", "calendar", "invalid")]


@pytest.mark.django_db
def test_all_problems_of_calendars_are_reported_together() -> None:
    good = {"name": "good", "dates": "12-25"}
    items = [
        good,
        "nonsense",
        {"name": 5},
        {"name": "twice", "dates": "12-25"},
        {"name": "a/b", "dates": "x"},
    ]
    items.append(items[3])
    reading = portable.read_document(
        document(MINIMAL | {"calendar": "twice"}, calendars=items)
    ).calendars
    assert [*reading.valid] == ["good"]
    assert problems_of(reading) == [
        ("calendar 2", "", "not_an_object"),
        ("calendar 3", "name", "invalid"),
        ("calendar 3", "dates", "required"),
        ("calendar a/b", "name", "invalid"),
        ("calendar twice", "", "duplicate"),
    ]


@pytest.mark.django_db
def test_document_format_is_stable() -> None:
    job = Job(**MINIMAL, timeout=timedelta(minutes=90), starts_at=datetime(2027, 1, 1, tzinfo=UTC))
    later = Job(**MINIMAL | {"namespace": "a", "name": "b"})
    text = portable.write_document([job, later])
    assert text.startswith(
        '{\n  "format": "django-dcron",\n  "version": 1,\n  "jobs": [\n    {\n      '
        '"namespace": "a"'
    )
    assert text.endswith("}\n")
    first, second = json.loads(text)["jobs"]
    assert (first["name"], second["name"]) == ("b", "a")
    assert (second["timeout"], second["starts_at"]) == ("1h30m", "2027-01-01T00:00:00Z")
    assert list(second) == NAMES


@pytest.mark.django_db
@pytest.mark.parametrize("syntax", DocumentSyntax)
def test_control_characters_are_escaped_in_documents(syntax: DocumentSyntax) -> None:
    argument = "a\x1b[31mb\x9b31mc\x7fd"
    job = make_idle_job(target="tests.app.tasks.echo", args=[argument])
    text = portable.write_document([job], syntax)
    assert not {*text} & {"\x1b", "\x9b", "\x7f"}
    (entry,) = portable.read_document(text, syntax).entries
    assert entry.values["args"] == [argument]


@pytest.mark.django_db
def test_omitted_fields_have_their_defaults() -> None:
    (entry,) = portable.read_document(document(MINIMAL)).entries
    assert entry.key == ("default", "a")
    assert set(entry.values) == {"namespace", "name", "target", "schedule"}
    assert entry.job().max_attempts == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("field", "written", "code"),
    [
        ("timeuot", "1m", "unknown"),
        ("id", 7, "unknown"),
        ("max_attempts", "three", "invalid"),
        ("max_attempts", True, "invalid"),
        ("max_attempts", 0, "min_value"),
        ("max_attempts", None, "null"),
        ("retry_jitter", "much", "invalid"),
        ("retry_jitter", float("nan"), "invalid"),
        ("enabled", "yes", "invalid"),
        ("timeout", 90, "invalid"),
        ("timeout", "soon", "invalid"),
        ("timeout", "9" * 60 + "d", "invalid"),
        ("starts_at", "noon", "invalid"),
        ("starts_at", "2027-01-01T00:00", "naive"),
        ("starts_at", "0001-01-01T00:00:00+14:00", "out_of_range"),
        ("description", "a\0b", "unstorable"),
        ("description", "\ud800", "unstorable"),
        ("args", ["\0"], "unstorable"),
        ("args", json.loads("[" * 40 + "]" * 40), "unstorable"),
        ("schedule", "61 * * * *", "invalid"),
        ("schedule", 5, "invalid"),
        ("timezone", "Europe/Berlim", "invalid"),
        ("target", "tests.app.tasks.okk", "invalid"),
        ("args", {}, "invalid"),
        ("tags", "billing", "invalid"),
    ],
)
def test_problem_names_job_field_and_value(field: str, written: Any, code: str) -> None:
    good = MINIMAL | {"name": "good"}
    reading = portable.read_document(document(MINIMAL | {field: written}, good))
    assert [entry.key[1] for entry in reading.entries] == ["good"]
    assert problems_of(reading) == [("a", field, code)]
    (problem,) = reading.problems
    assert problem.value == written or written != written
    assert str(problem).startswith(f"a: {field}: {portable.quoted_json(written)}: ")


@pytest.mark.django_db
def test_problem_text_suggests_names_and_is_shortened() -> None:
    given = {"timeuot": "1m", "namespace": "shop", "description": ["y" * 300], "name": None}
    reading = portable.read_document(
        document(MINIMAL | given, MINIMAL | {"namespace": "shop", "queue": "a b"})
    )
    by_field = {problem.field: problem for problem in reading.problems}
    assert "'timeout'" in str(by_field["timeuot"])
    assert len(str(by_field["description"])) < 200
    assert (by_field["name"].job, by_field["queue"].job) == ("job 1", "shop/a")


@pytest.mark.django_db
def test_all_problems_of_jobs_are_reported_together() -> None:
    items = [{"target": 3}, "nonsense", MINIMAL, MINIMAL | {"description": "again"}]
    reading = portable.read_document(document(*items))
    assert reading.entries == []
    assert problems_of(reading) == [
        ("job 1", "target", "invalid"),
        ("job 1", "name", "required"),
        ("job 1", "schedule", "required"),
        ("job 2", "", "not_an_object"),
        ("default/a", "", "duplicate"),
    ]


@pytest.mark.parametrize(
    ("text", "syntax", "message"),
    [
        ("{", DocumentSyntax.JSON, "JSON: Expecting"),
        ("[" * 100_000, DocumentSyntax.JSON, "JSON: "),
        ("a: [", DocumentSyntax.YAML, "YAML: while parsing"),
        (
            "!!python/object/apply:os.system [ls]",
            DocumentSyntax.YAML,
            "YAML: could not determine a constructor",
        ),
        ("[]", DocumentSyntax.JSON, '"django-dcron"'),
        ('{"format": "other"}', DocumentSyntax.JSON, '"format"'),
        (document(version=2), DocumentSyntax.JSON, '"version" is 2'),
        (document(jobs={}), DocumentSyntax.JSON, '"jobs" must be a list.'),
        (document(calendars={}), DocumentSyntax.JSON, '"calendars" must be a list.'),
        (document(job=[]), DocumentSyntax.JSON, '"job"'),
        (
            '{"jobs": [{"name": "report", "target": "a", "queue": "x", "target": "b"}]}',
            DocumentSyntax.JSON,
            'The object "report" has the key "target" more than once.',
        ),
        (
            '{"jobs": [], "jobs": [], "jobs": []}',
            DocumentSyntax.JSON,
            'The object has the key "jobs" more than once.',
        ),
        (
            'jobs:\n- name: report\n  target: a\n  queue: x\n  "target": b\n',
            DocumentSyntax.YAML,
            "YAML: line 5: the mapping has the key 'target' more than once",
        ),
    ],
)
def test_invalid_document_is_refused(text: str, syntax: DocumentSyntax, message: str) -> None:
    with pytest.raises(UnreadableDocument) as refused:
        portable.read_document(text, syntax)
    assert message in str(refused.value)


def test_json_document_with_a_repeated_key_is_not_called_invalid_json() -> None:
    with pytest.raises(UnreadableDocument) as refused:
        portable.read_document('{"jobs": [], "jobs": []}')
    assert str(refused.value).startswith("The object")


@pytest.mark.django_db
def test_ambiguous_yaml_values_are_refused() -> None:
    """YAML reads some plain words as other types. Such values are refused."""
    text = """
format: django-dcron
version: 1
jobs:
  - {name: a, target: tests.app.tasks.ok, schedule: "@daily", starts_at: 2027-01-01T00:00:00Z,
     tags: [x]}
  - {name: b, target: tests.app.tasks.ok, schedule: "@daily", description: on}
  - {name: c, target: tests.app.tasks.ok, schedule: "@daily", kwargs: {1: 2}}
  - {name: d, target: tests.app.tasks.ok, schedule: "@daily", args: [2027-01-01]}
"""
    reading = portable.read_document(text, DocumentSyntax.YAML)
    (entry,) = reading.entries
    assert entry.values["starts_at"] == datetime(2027, 1, 1, tzinfo=UTC)
    assert problems_of(reading) == [
        ("b", "description", "invalid"),
        ("c", "kwargs", "invalid"),
        ("d", "args", "invalid"),
    ]


def test_missing_pyyaml_is_reported_with_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without_yaml(name: str, *args: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return original(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_yaml)
    for attempt in (
        lambda: portable.write_document([], DocumentSyntax.YAML),
        lambda: portable.read_document("", DocumentSyntax.YAML),
    ):
        with pytest.raises(ImproperlyConfigured, match=r"pip install django-dcron\[yaml\]"):
            attempt()
    assert json.loads(portable.write_document([]))["jobs"] == []
