"""Test the inputs for the arguments of a job, and how they agree with the raw JSON."""

import enum
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from django_dcron import targets
from django_dcron.admin.jobs.argument_inputs import JobArguments
from django_dcron.models import Job, Run
from django_dcron.targets import functions
from django_dcron.targets.parameters import InputKind
from tests.admin.conftest import (
    StaffWith,
    action_url,
    add_url,
    as_rendered,
    errors,
    fill_in,
    job_url,
    make_job,
)

KEY = "tests.report"
OTHER = "tests.other"
OPTIONAL = "tests.optional"
OPEN = "tests.open"
ROWS = "tests.rows"
UNTYPED = "tests.untyped"
SECRET = "tests.secret"


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


def report(
    city: str,
    days: int = 7,
    *,
    full: bool = False,
    ratio: float | None = None,
    day: date | None = None,
    at: datetime | None = None,
    color: Color = Color.RED,
    size: Literal["s", "l"] = "s",
    tags: list[str] | None = None,
    plain=3,  # type: ignore[no-untyped-def]
) -> None:
    """Accept one parameter of each kind."""


def other(city: str = "", limit: int | None = None) -> None:
    """Share one parameter with ``report``."""


def pay(
    rate: Decimal,
    reason: str | None,
    note: str | None = None,
    remark: str | None = "none",
    fee: Decimal = Decimal("0.10"),
    tip=Decimal("0.20"),  # type: ignore[no-untyped-def]
) -> None:
    """Take decimal numbers, and texts that may be None."""


def untyped(value) -> None:  # type: ignore[no-untyped-def]
    """Have a parameter without a type hint, as most Celery tasks."""


def log_in(city: str, password: str) -> None:
    """Have a parameter with a secret."""


def fetch(city: str, days: int = 1, access: dict[str, str] | None = None) -> None:
    """Have a positional parameter with a secret in its value."""


def remind(
    user: Annotated[int, User],
    copy: Annotated[int | None, User] = None,
    deputy: Annotated[int, User] | None = None,
    group: Annotated[str, "a name"] = "",
    by_text: Annotated[str, User] = "",
) -> None:
    """Take the keys of rows."""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(functions.registered, KEY, report)
    monkeypatch.setitem(functions.registered, OTHER, other)
    monkeypatch.setitem(functions.registered, OPTIONAL, pay)
    monkeypatch.setitem(functions.registered, OPEN, log_in)
    monkeypatch.setitem(functions.registered, SECRET, fetch)
    monkeypatch.setitem(functions.registered, ROWS, remind)
    monkeypatch.setitem(functions.registered, UNTYPED, untyped)


def as_page(client: Client, url: str) -> dict[str, str]:
    """Return what a browser would submit, with the inputs of the arguments."""
    return submitted(client.get(url))


def submitted(response: Any) -> dict[str, str]:
    return _submitted(as_rendered(response), response.context["adminform"].form.arguments)


def _submitted(sent: dict[str, str], arguments: JobArguments) -> dict[str, str]:
    sent |= {"arguments_target": arguments.target, "arguments_json": arguments.as_json}
    for bound in arguments.inputs or ():
        value = bound.value()
        text = bound.field.widget.format_value(value)
        sent[bound.html_name] = (text[0] if isinstance(text, list) else text) or ""
    return sent


def kinds(response: Any) -> dict[str, str]:
    inputs = response.context["adminform"].form.arguments.inputs
    return {name: type(field).__name__.strip("_") for name, field in inputs.fields.items()}


def test_each_type_hint_has_its_kind_of_input() -> None:
    found = {each.name: each.kind for each in targets.get(KEY).parameters}
    assert found == {
        "city": InputKind.TEXT,
        "days": InputKind.INTEGER,
        "full": InputKind.BOOLEAN,
        "ratio": InputKind.NUMBER,
        "day": InputKind.DATE,
        "at": InputKind.DATETIME,
        "color": InputKind.CHOICE,
        "size": InputKind.CHOICE,
        "tags": InputKind.JSON,
        "plain": InputKind.INTEGER,
    }
    city, days, *_others = targets.get(KEY).parameters
    assert (city.is_required, days.is_required, days.default) == (True, False, 7)
    assert targets.get("tests.app.tasks.echo").parameters == []


@pytest.mark.parametrize(
    ("args", "kwargs", "typed", "stored"),
    [
        ([], {"city": "Oslo"}, {}, ([], {"city": "Oslo"})),
        ([], {"city": "Oslo"}, {"days": "3"}, ([], {"city": "Oslo", "days": 3})),
        (["Oslo", 5], {"full": True}, {"days": "6"}, (["Oslo", 6], {"full": True})),
        (["Oslo", 5], {"full": True}, {"days": ""}, (["Oslo"], {"full": True})),
        (["Oslo", 5], {}, {"full": "false"}, (["Oslo", 5], {"full": False})),
        (["Oslo"], {}, {"color": '"b"', "size": '"l"'}, (["Oslo"], {"color": "b", "size": "l"})),
        (["Oslo"], {}, {"ratio": "0.5"}, (["Oslo"], {"ratio": 0.5})),
        (["Oslo"], {}, {"day": "2026-02-03"}, (["Oslo"], {"day": "2026-02-03"})),
        (
            ["Oslo"],
            {},
            {"at": "2026-02-03T04:05"},
            (["Oslo"], {"at": "2026-02-03T04:05:00+00:00"}),
        ),
        (["Oslo"], {}, {"tags": '["a"]'}, (["Oslo"], {"tags": ["a"]})),
        (["Oslo"], {"days": "many"}, {"plain": "4"}, (["Oslo"], {"days": "many", "plain": 4})),
        (["Oslo"], {"days": "many"}, {"days": "8"}, (["Oslo"], {"days": 8})),
    ],
)
def test_changed_inputs_become_part_of_the_json(
    admin_client: Client,
    args: list[Any],
    kwargs: dict[str, Any],
    typed: dict[str, str],
    stored: tuple[list[Any], dict[str, Any]],
) -> None:
    job = make_job(target=KEY, args=args, kwargs=kwargs)
    sent = as_page(admin_client, job_url(job))

    answer = admin_client.post(
        job_url(job), sent | {f"argument-{name}": value for name, value in typed.items()}
    )

    assert answer.status_code == 302, errors(answer)
    job.refresh_from_db()
    assert (job.args, job.kwargs) == stored


@pytest.mark.parametrize(
    "kwargs",
    [
        {"city": "a\nb"},
        {"city": ""},
        {"city": "x", "ratio": 1},
        {"city": "x", "ratio": 1e300},
        {"city": "x", "ratio": 2**53},
        {"city": "x", "ratio": 2**53 + 1},
        {"city": "x", "ratio": -(2**53) - 1},
        {"city": "x", "ratio": 10**400},
        {"city": "x", "day": "2026-02-30"},
        {"city": "x", "at": "2026-02-03T04:05:00"},
        {"city": "x", "at": "2026-02-03T04:05:00.5+00:00"},
        {"city": "x", "at": "2026-02-03T04:05:00+09:00"},
        {"city": "x", "days": True, "full": 1, "color": "green", "size": None},
        {"city": "x", "days": None, "tags": {"é": [1.5, None]}},
        {"city": "x", "tags": None},
    ],
)
def test_no_value_is_lost_or_converted(admin_client: Client, kwargs: dict[str, Any]) -> None:
    job = make_job(target=KEY, kwargs=kwargs)
    job.refresh_from_db()  # with the numbers and the order of keys of the database
    stored = job.kwargs
    sent = as_page(admin_client, job_url(job))

    answer = admin_client.post(job_url(job), sent | {"argument-plain": "4"})

    assert answer.status_code == 302, errors(answer)
    job.refresh_from_db()
    assert job.kwargs.pop("plain") == 4
    assert json.dumps(job.kwargs) == json.dumps(stored)


@pytest.mark.parametrize(
    "at",
    [
        "2026-10-25T01:30:00+02:00",
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:30:00+01:00",
        "2026-10-25T03:30:00+01:00",
        "2026-03-29T02:30:00+01:00",
        "2026-03-29T02:30:00+02:00",
        "0001-01-01T00:00:00+00:53:28",
        "9999-12-31T23:30:00+00:00",
    ],
)
@pytest.mark.parametrize("submitted", [{}, {"argument-plain": "4"}], ids=["unchanged", "changed"])
def test_time_near_a_clock_change_is_kept(
    admin_client: Client, settings: Settings, at: str, submitted: dict[str, str]
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    job = make_job(target=KEY, kwargs={"city": "x", "at": at})

    answer = admin_client.post(job_url(job), as_page(admin_client, job_url(job)) | submitted)

    assert answer.status_code == 302, errors(answer)
    job.refresh_from_db()
    assert job.kwargs["at"] == at


def _pay(client: Client, stored: dict[str, Any], **typed: str) -> Any:
    """Change inputs of the job, whose stored arguments are ``stored``."""
    job = make_job(target=OPTIONAL, kwargs={"rate": "0.19", "reason": "tax"} | stored)
    sent = as_page(client, job_url(job))
    return client.post(job_url(job), sent | {f"argument-{k}": v for k, v in typed.items()})


def test_decimal_parameter_has_a_text_input_with_its_default() -> None:
    found = {each.name: each for each in targets.get(OPTIONAL).parameters}
    decimals = [name for name, each in found.items() if each.kind is InputKind.DECIMAL]
    assert decimals == ["rate", "fee", "tip"]
    assert [found[name].default for name in decimals] == [None, "0.10", "0.20"]


@pytest.mark.parametrize(
    ("typed", "stored"), [("12.50", "12.50"), (" -3 ", "-3"), ("0.10", "0.10"), ("+5", "5")]
)
def test_decimal_number_is_stored_as_text(admin_client: Client, typed: str, stored: str) -> None:
    assert _pay(admin_client, {}, rate=typed).status_code == 302
    assert Job.objects.get().kwargs["rate"] == stored


@pytest.mark.parametrize("typed", ["12,50", "x", "NaN", "Infinity", "[1]", "1.2.3"])
def test_text_that_is_no_decimal_number_is_refused(admin_client: Client, typed: str) -> None:
    (message,) = errors(_pay(admin_client, {}, rate=typed))["kwargs"]
    assert message.startswith("rate: ")
    assert typed in message
    assert "12.50" in message
    assert Job.objects.get().kwargs["rate"] == "0.19"


@pytest.mark.parametrize("rate", [0.19, 1, "1,5", " 2", "null"])
def test_other_value_of_a_decimal_parameter_is_kept(admin_client: Client, rate: Any) -> None:
    assert _pay(admin_client, {"rate": rate}, fee="1.0").status_code == 302
    assert Job.objects.get().kwargs == {"rate": rate, "reason": "tax", "fee": "1.0"}


@pytest.mark.parametrize("name", ["reason", "note", "remark"])
@pytest.mark.parametrize("typed", ["null", "None"])
def test_text_that_may_mean_none_is_refused(admin_client: Client, name: str, typed: str) -> None:
    (message,) = errors(_pay(admin_client, {}, **{name: typed}))["kwargs"]
    assert message.startswith(f"{name}: “{typed}”")
    assert "Edit as JSON" in message
    assert ("leave the input empty" in message) is (name != "remark")


def test_empty_input_passes_none_where_its_help_says_so(admin_client: Client) -> None:
    assert _pay(admin_client, {"note": "old"}, reason="", note="").status_code == 302
    assert Job.objects.get().kwargs == {"rate": "0.19", "reason": None}  # the default of note
    inputs = admin_client.get(job_url(Job.objects.get())).context["adminform"].form.arguments.inputs
    with_none = [name for name, field in inputs.fields.items() if "Empty: None" in field.help_text]
    assert with_none == ["reason", "note"]


@pytest.mark.parametrize("stored", ["null", "None", "none", None])
def test_stored_text_that_may_mean_none_is_kept(admin_client: Client, stored: str | None) -> None:
    assert _pay(admin_client, {"note": stored}, rate="2").status_code == 302
    assert Job.objects.get().kwargs["note"] == stored


def test_edited_json_wins_over_inputs(admin_client: Client) -> None:
    job = make_job(target=KEY, kwargs={"city": "Oslo"})
    sent = as_page(admin_client, job_url(job))
    sent |= {"argument-days": "3", "kwargs": '{"city": "Rome"}'}

    assert admin_client.post(job_url(job), sent).status_code == 302
    job.refresh_from_db()
    assert job.kwargs == {"city": "Rome"}


@pytest.mark.parametrize(("stored", "edited"), [("1", "true"), ("true", "1"), ("1.0", "true")])
def test_edited_json_wins_if_its_value_is_equal_in_python(
    admin_client: Client, stored: str, edited: str
) -> None:
    job = make_job(target=UNTYPED, kwargs={"value": json.loads(stored)})
    sent = as_page(admin_client, job_url(job)) | {"kwargs": f'{{"value": {edited}}}'}
    assert admin_client.post(job_url(job), sent).status_code == 302
    assert json.dumps(Job.objects.get().kwargs["value"]) == edited


def test_input_that_was_not_submitted_is_unchanged(admin_client: Client) -> None:
    job = make_job(target=KEY, kwargs={"city": "Oslo", "days": 3, "tags": ["a"]})
    sent = as_page(admin_client, job_url(job))
    for name in ("city", "days", "tags"):
        del sent[f"argument-{name}"]
    assert admin_client.post(job_url(job), sent | {"argument-ratio": "2"}).status_code == 302
    assert Job.objects.get().kwargs == {"city": "Oslo", "days": 3, "tags": ["a"], "ratio": 2}


def test_inputs_of_another_target_are_ignored(admin_client: Client) -> None:
    job = make_job(target=KEY, kwargs={"city": "Oslo"})
    sent = as_page(admin_client, job_url(job)) | {"target": OTHER, "argument-city": "Rome"}

    assert admin_client.post(job_url(job), sent).status_code == 302
    job.refresh_from_db()
    assert (job.target, job.kwargs) == (OTHER, {"city": "Oslo"})


@pytest.mark.parametrize(("name", "value"), [("days", "x"), ("tags", "["), ("day", "2026-02-30")])
def test_invalid_input_is_refused_and_kept(admin_client: Client, name: str, value: str) -> None:
    job = make_job(target=KEY, kwargs={"city": "Oslo"})
    sent = as_page(admin_client, job_url(job)) | {f"argument-{name}": value}

    refused = admin_client.post(job_url(job), sent)

    assert list(errors(refused)) == ["kwargs"]
    inputs = refused.context["adminform"].form.arguments.inputs
    assert list(inputs.errors) == [name]
    assert refused.context["open_tab"] == "general"
    assert f'value="{value}"' in refused.content.decode()
    assert Job.objects.get().kwargs == {"city": "Oslo"}


def test_each_empty_required_input_has_an_error(admin_client: Client) -> None:
    sent = as_page(admin_client, add_url()) | {"name": "new", "schedule": "@daily", "target": OPEN}
    first = admin_client.post(add_url(), sent)
    # The first page had no inputs of this target yet. The second one has them.
    sent = submitted(first) | {"argument-password": ""}
    for refused in (first, admin_client.post(add_url(), sent)):
        arguments = refused.context["adminform"].form.arguments
        assert list(arguments.inputs.errors) == ["city", "password"]
        assert not arguments.opens_json
        # By this id, the script finds the error that the page has already.
        assert refused.content.decode().count('id="id_argument-city_error"') == 1
        tab = refused.context["tabs"][0]
        assert (tab.name, tab.errors) == ("general", 2)
        preview = refused.context["preview"]
        assert [error.field for error in preview.errors] == ["argument-city", "argument-password"]
        assert not preview.argument_problem

    sent = submitted(first) | {"argument-city": "Oslo", "argument-password": "hunter2"}
    assert admin_client.post(add_url(), sent).status_code == 302
    assert Job.objects.get().kwargs == {"city": "Oslo", "password": "hunter2"}


def test_emptied_required_input_has_an_error(admin_client: Client) -> None:
    job = make_job(target=OPEN, kwargs={"city": "Oslo", "password": "hunter2"})
    sent = as_page(admin_client, job_url(job)) | {"argument-city": ""}
    refused = admin_client.post(job_url(job), sent)
    assert list(refused.context["adminform"].form.arguments.inputs.errors) == ["city"]


def test_invalid_and_empty_inputs_have_their_errors(admin_client: Client) -> None:
    job = make_job(target=KEY, kwargs={"city": "Oslo"})
    sent = as_page(admin_client, job_url(job)) | {"argument-city": "", "argument-days": "x"}
    refused = admin_client.post(job_url(job), sent)
    inputs = refused.context["adminform"].form.arguments.inputs
    assert set(inputs.errors) == {"city", "days"}
    assert inputs.missing == ["city"]


def test_preview_of_a_new_job_ignores_empty_required_inputs(admin_client: Client) -> None:
    sent = as_page(admin_client, add_url()) | {"target": OPEN}
    for refused in (False, True):
        data = sent | ({"_refused": "1"} if refused else {})
        preview = admin_client.post(reverse("admin:django_dcron_job_preview"), data)
        fields = {error.field for error in preview.context["preview"].errors}
        assert ("argument-city" in fields) == refused


def test_json_with_an_unknown_argument_opens_beside_an_error(admin_client: Client) -> None:
    """A preview has shown the JSON, so only the input of the missing argument has an error."""
    call = {"city": "Oslo", "unknown": 1}
    sent = as_page(admin_client, add_url()) | {"target": OPEN, "kwargs": json.dumps(call)}
    rendered = {"arguments_target": OPEN}
    for shown, is_open in ((call, True), ({"city": "Oslo"}, False)):
        rendered["arguments_json"] = json.dumps([[], shown])
        refused = admin_client.post(add_url(), sent | rendered | {"kwargs": json.dumps(shown)})
        arguments = refused.context["adminform"].form.arguments
        assert list(arguments.inputs.errors) == ["password"]
        assert arguments.opens_json is is_open


def test_edited_json_without_a_required_argument_opens(admin_client: Client) -> None:
    job = make_job(target=OPEN, kwargs={"city": "Oslo", "password": "hunter2"})
    sent = as_page(admin_client, job_url(job)) | {"kwargs": '{"city": "Oslo"}'}
    refused = admin_client.post(job_url(job), sent)
    assert list(errors(refused)) == ["args"]
    assert refused.context["adminform"].form.arguments.opens_json


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("Berlin", "Berlin"),
        ("New York 5", "New York 5"),
        ("007", "007"),
        ("2026-11-28", "2026-11-28"),
        ("5", 5),
        ("true", True),
        ('"5"', "5"),
        ("[1, 2]", [1, 2]),
        ("null", None),
        ('""', ""),
        ('"a\\tb"', "a\tb"),
        ("東京\u3000駅", "東京\u3000駅"),
        (" Berlin ", "Berlin"),
        ('" Berlin "', " Berlin "),
    ],
)
def test_input_without_a_type_hint_takes_text_or_json(
    admin_client: Client, text: str, stored: Any
) -> None:
    job = make_job(target=UNTYPED, kwargs={"value": "old"})
    sent = as_page(admin_client, job_url(job)) | {"argument-value": text}
    assert admin_client.post(job_url(job), sent).status_code == 302
    assert Job.objects.get().kwargs == {"value": stored}
    sent = as_page(admin_client, job_url(job))
    assert admin_client.post(job_url(job), sent | {"schedule": "@daily"}).status_code == 302
    assert Job.objects.get().kwargs == {"value": stored}


@pytest.mark.parametrize("text", ["", " "])
def test_emptied_input_omits_the_argument(admin_client: Client, text: str) -> None:
    job = make_job(target=KEY, kwargs={"city": "Oslo", "tags": ["a"]})
    sent = as_page(admin_client, job_url(job)) | {"argument-tags": text}
    assert admin_client.post(job_url(job), sent).status_code == 302
    assert Job.objects.get().kwargs == {"city": "Oslo"}


@pytest.mark.parametrize(("text", "stored"), [("null", None), ('""', "")])
def test_json_input_takes_null_and_empty_text(admin_client: Client, text: str, stored: Any) -> None:
    job = make_job(target=KEY, kwargs={"city": "Oslo", "tags": ["a"]})
    sent = as_page(admin_client, job_url(job)) | {"argument-tags": text}
    assert admin_client.post(job_url(job), sent).status_code == 302
    assert Job.objects.get().kwargs == {"city": "Oslo", "tags": stored}


def test_argument_without_a_parameter_is_removed_with_its_input(admin_client: Client) -> None:
    job = make_job(target=OTHER, kwargs={"city": "Oslo"})
    Job.objects.filter(pk=job.pk).update(kwargs={"city": "Oslo", "dry run": True, "old": None})
    sent = as_page(admin_client, job_url(job))
    assert (sent["argument-dry run"], sent["argument-old"]) == ("true", "null")
    assert list(errors(admin_client.post(job_url(job), sent | {"argument-limit": "3"})))
    sent |= {"argument-dry run": "", "argument-old": "", "argument-limit": "3"}
    assert admin_client.post(job_url(job), sent).status_code == 302
    assert Job.objects.get().kwargs == {"city": "Oslo", "limit": 3}


def test_argument_of_a_target_without_parameters_is_removed_with_its_input(
    admin_client: Client,
) -> None:
    job = make_job(target="tests.app.tasks.ok")
    assert not any(name.startswith("argument-") for name in as_page(admin_client, job_url(job)))
    Job.objects.filter(pk=job.pk).update(kwargs={"city": "Oslo"})
    sent = as_page(admin_client, job_url(job))
    assert sent["argument-city"] == "Oslo"
    assert admin_client.post(job_url(job), sent | {"argument-city": ""}).status_code == 302
    assert Job.objects.get().kwargs == {}


def test_preview_removes_the_input_of_an_argument_that_is_gone(admin_client: Client) -> None:
    job = make_job(target="tests.app.tasks.echo", kwargs={"city": "Oslo"})
    sent = as_page(admin_client, job_url(job)) | {"argument-city": ""}
    url = f"{reverse('admin:django_dcron_job_preview')}?job={job.pk}"
    page = admin_client.post(url, sent).content.decode()
    assert 'id="dcron-argument-inputs"' in page
    assert "argument-city" not in page


def test_form_with_too_many_inputs_offers_none(admin_client: Client) -> None:
    names = [f"k{number}" for number in range(31)]
    job = make_job(target="tests.app.tasks.echo", kwargs=dict.fromkeys(names, 1))
    assert admin_client.get(job_url(job)).context["adminform"].form.arguments.inputs is None


@pytest.mark.parametrize("text", ["[1", "{'a': 1}", '"Berlin', "'Berlin'", "True", "none", "NaN"])
def test_input_without_a_type_hint_refuses_text_that_is_nearly_json(
    admin_client: Client, text: str
) -> None:
    job = make_job(target=UNTYPED, kwargs={"value": "old"})
    sent = as_page(admin_client, job_url(job)) | {"argument-value": text}
    assert list(errors(admin_client.post(job_url(job), sent))) == ["kwargs"]
    assert Job.objects.get().kwargs == {"value": "old"}


def test_error_of_a_json_field_has_an_example(admin_client: Client) -> None:
    job = make_job(target=OTHER)
    sent = as_page(admin_client, job_url(job)) | {"alerts": "ConnectionError"}
    (message,) = errors(admin_client.post(job_url(job), sent))["alerts"]
    json.loads(message[message.index("such as ") + 8 :].rstrip("."))


def test_error_of_other_json_has_an_example(admin_client: Client) -> None:
    sent = as_page(admin_client, job_url(make_job(target=OTHER))) | {"after": '["first"]'}
    (message,) = errors(admin_client.post(job_url(Job.objects.get()), sent))["after"]
    example = json.loads(message[message.index("such as ") + 8 :].rstrip("."))
    assert list(example.values()) == ["succeeded"]


@pytest.mark.parametrize("name", ["args", "kwargs"])
def test_error_of_other_arguments_has_an_example(admin_client: Client, name: str) -> None:
    answer = _run_with(admin_client, make_job(target=OTHER), **{name: "x"})
    (message,) = answer.context["form"].errors[name]
    example = json.loads(message[message.index("such as ") + 8 :].rstrip("."))
    assert isinstance(example, {"args": list, "kwargs": dict}[name])


def test_refused_save_keeps_changed_inputs(admin_client: Client) -> None:
    job = make_job(target=KEY, kwargs={"city": "Oslo"})
    sent = as_page(admin_client, job_url(job)) | {"argument-days": "3", "name": ""}

    refused = admin_client.post(job_url(job), sent)
    assert list(errors(refused)) == ["name"]
    again = submitted(refused)
    assert (again["argument-days"], json.loads(again["kwargs"])) == (
        "3",
        {"city": "Oslo", "days": 3},
    )
    assert admin_client.post(job_url(job), again | {"name": "kept"}).status_code == 302
    assert Job.objects.get().kwargs == {"city": "Oslo", "days": 3}


def test_form_without_inputs_takes_json(admin_client: Client) -> None:
    response = fill_in(
        admin_client, add_url(), name="new", target=KEY, schedule="@daily", kwargs='{"city": "A"}'
    )
    assert response.status_code == 302, errors(response)
    assert Job.objects.get().kwargs == {"city": "A"}


@pytest.mark.parametrize(
    ("changes", "replaced"),
    [
        ({}, set()),
        ({"argument-days": "3"}, {"json"}),
        ({"kwargs": '{"city": "Rome"}'}, {"inputs"}),
        ({"kwargs": "{"}, set()),
        ({"target": OTHER}, {"inputs"}),
    ],
)
def test_preview_replaces_what_the_user_has_not_edited(
    admin_client: Client, changes: dict[str, str], replaced: set[str]
) -> None:
    job = make_job(target=KEY, kwargs={"city": "Oslo"})
    sent = as_page(admin_client, job_url(job)) | changes
    url = f"{reverse('admin:django_dcron_job_preview')}?job={job.pk}"

    page = admin_client.post(url, sent).content.decode()

    marks = {"inputs": 'id="dcron-argument-inputs"', "json": '<textarea name="kwargs"'}
    assert {name for name, mark in marks.items() if mark in page} == replaced
    assert 'id="dcron-argument-state"' in page


# --- Run with arguments ---------------------------------------------------------------------------


def _run_with(client: Client, job: Job, **typed: str) -> Any:
    """Submit the form that runs ``job`` with other arguments, after typing."""
    url = action_url(job, "run_with")
    form = client.get(url).context["form"]
    sent = {name: form[name].value() for name in ("args", "kwargs")}
    return client.post(url, {**_submitted(sent, form.arguments), **typed})


@pytest.mark.parametrize(
    ("typed", "ran"),
    [
        ({}, (["Oslo", 5], {"full": True})),
        ({"argument-days": "6"}, (["Oslo", 6], {"full": True})),
        ({"argument-color": '"b"'}, (["Oslo", 5], {"full": True, "color": "b"})),
        ({"kwargs": '{"ratio": 0.5}'}, (["Oslo", 5], {"ratio": 0.5})),
        ({"kwargs": '{"ratio": 0.5}', "argument-days": "6"}, (["Oslo", 5], {"ratio": 0.5})),
    ],
)
def test_run_with_other_arguments_has_the_inputs_of_the_job_form(
    admin_client: Client, typed: dict[str, str], ran: tuple[list[Any], dict[str, Any]]
) -> None:
    job = make_job(target=KEY, args=["Oslo", 5], kwargs={"full": True})
    _run_with(admin_client, job, **typed)
    run = Run.objects.get(job=job)
    assert (run.args, run.kwargs) == ran
    job.refresh_from_db()
    assert (job.args, job.kwargs) == (["Oslo", 5], {"full": True})


def test_run_with_invalid_input_shows_the_error_and_keeps_the_input(admin_client: Client) -> None:
    job = make_job(target=KEY, args=["Oslo"])
    answer = _run_with(admin_client, job, **{"argument-days": "many"})
    form = answer.context["form"]
    assert list(form.errors) == ["kwargs"]
    assert list(form.arguments.inputs.errors) == ["days"]
    assert 'value="many"' in answer.content.decode()
    assert not Run.objects.exists()


def test_run_with_each_empty_required_input_shows_its_error(admin_client: Client) -> None:
    job = make_job(target=OPEN, kwargs={"city": "Oslo", "password": "hunter2"})
    answer = _run_with(admin_client, job, **{"argument-city": "", "argument-password": ""})
    form = answer.context["form"]
    assert list(form.arguments.inputs.errors) == ["city", "password"]
    assert not form.arguments.opens_json
    assert not Run.objects.exists()


def test_run_with_inputs_keeps_masked_secrets(admin_client: Client) -> None:
    job = make_job(target=OPEN, kwargs={"city": "Oslo", "password": "hunter2"})
    assert "hunter2" not in admin_client.get(action_url(job, "run_with")).content.decode()
    _run_with(admin_client, job, **{"argument-city": "Rome"})
    assert Run.objects.get().kwargs == {"city": "Rome", "password": "hunter2"}


def test_secret_that_is_passed_by_name_after_an_emptied_input_is_kept(
    admin_client: Client,
) -> None:
    job = make_job(target=SECRET, args=["Oslo", 3, {"password": "hunter2"}])
    _run_with(admin_client, job, **{"argument-days": ""})
    run = Run.objects.get()
    assert (run.args, run.kwargs) == (["Oslo"], {"access": {"password": "hunter2"}})


def test_hint_with_a_model_has_a_lookup_of_its_rows(admin_client: Client) -> None:
    found = {each.name: (each.kind, each.model) for each in targets.get(ROWS).parameters}
    assert found == {
        "user": (InputKind.INTEGER, User),
        "copy": (InputKind.INTEGER, User),
        "deputy": (InputKind.INTEGER, User),
        "group": (InputKind.TEXT, None),
        "by_text": (InputKind.TEXT, User),
    }
    ann = User.objects.create_user("ann")
    job = make_job(target=ROWS, kwargs={"user": ann.pk})
    for url in (job_url(job), action_url(job, "run_with")):
        html = admin_client.get(url).content.decode()
        for name in ("user", "copy", "deputy"):
            assert f'id="lookup_id_argument-{name}"' in html
        assert 'id="lookup_id_argument-group"' not in html
        assert ">ann<" in html
    sent = as_page(admin_client, job_url(job))

    bob = User.objects.create_user("bob")
    answer = admin_client.post(job_url(job), sent | {"argument-copy": str(bob.pk)})
    assert answer.status_code == 302, errors(answer)
    job.refresh_from_db()
    assert job.kwargs == {"user": ann.pk, "copy": bob.pk}, "the target gets the key"


def test_changed_key_without_row_is_refused(admin_client: Client) -> None:
    gone = User.objects.create_user("gone")
    job = make_job(target=ROWS, kwargs={"user": gone.pk})
    missing = gone.pk
    gone.delete()
    sent = as_page(admin_client, job_url(job))
    answer = admin_client.post(job_url(job), sent | {"argument-copy": str(missing + 1)})
    assert f"copy: No user with the key {missing + 1} exists." in str(errors(answer))
    answer = admin_client.post(job_url(job), sent | {"description": "other"})
    assert answer.status_code == 302, "only a changed key is checked"


def test_user_who_may_not_view_the_rows_enters_the_key(staff_with: StaffWith) -> None:
    client = staff_with("view_job", "change_job")
    ann = User.objects.create_user("ann")
    job = make_job(target=ROWS, kwargs={"user": ann.pk})
    html = client.get(job_url(job)).content.decode()
    assert 'name="argument-user"' in html
    assert "lookup_id_argument" not in html
    assert ">ann<" not in html
    answer = client.post(
        job_url(job), as_page(client, job_url(job)) | {"argument-copy": str(ann.pk + 1)}
    )
    assert answer.status_code == 302, "the answer would tell which rows exist"


@pytest.mark.parametrize("value", ["abc", "1.5", "9" * 30, "-1", "nan"])
def test_text_that_is_no_key_is_refused(admin_client: Client, value: str) -> None:
    job = make_job(target=ROWS, kwargs={"user": 1})
    sent = as_page(admin_client, job_url(job)) | {"argument-by_text": value}
    answer = admin_client.post(job_url(job), sent)
    assert answer.status_code == 200
    assert "by_text: No user with the key" in str(errors(answer))


def test_label_of_a_hidden_row_is_not_shown(
    staff_with: StaffWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, seen = (User.objects.create_user(name) for name in ("hidden-ann", "seen-bob"))
    everyone = UserAdmin.get_queryset
    monkeypatch.setattr(
        UserAdmin,
        "get_queryset",
        lambda self, request: everyone(self, request).exclude(pk=hidden.pk),
    )
    client = staff_with("view_job", "change_job", "view_user")
    job = make_job(target=ROWS, kwargs={"user": hidden.pk, "copy": seen.pk})
    html = client.get(job_url(job)).content.decode()
    assert "seen-bob" in html
    assert "hidden-ann" not in html
