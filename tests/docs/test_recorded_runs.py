"""The examples and tables of docs/how-to/recorded-runs.md work and match the code."""

import re
from typing import Any

import pytest

from django_dcron import control
from django_dcron.diagnosis.definitions import definition_document
from django_dcron.jobs.definitions import RECORDED_FIELDS
from django_dcron.jobs.representation import PORTABLE_JOB_FIELDS
from django_dcron.management.commands.dcron import SUBCOMMANDS
from django_dcron.models import Attempt, Definition
from django_dcron.testing import run_due
from tests.docs.test_documents import ROOT
from tests.factories import make_idle_job

PAGE = (ROOT / "docs" / "how-to" / "recorded-runs.md").read_text()
BY_ENVIRONMENT, READING, TESTING = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

pytestmark = pytest.mark.django_db


def _run(example: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "recorded-runs.md", "exec"), names)  # noqa: S102
    return names


def test_examples_name_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEASE", "5f1c2ab")
    assert _run(BY_ENVIRONMENT)["DCRON_RELEASE"] == "5f1c2ab"


def test_example_prints_what_ran(capsys: pytest.CaptureFixture[str]) -> None:
    job = make_idle_job(name="report", target="tests.app.tasks.echo", kwargs={"city": "Berlin"})
    control.trigger(job)
    run_due(jobs=[job])
    job.kwargs = {"city": "Paris"}
    control.save(job)
    _run(READING)["print_what_ran"]("report")
    printed = capsys.readouterr().out
    assert job.target in printed
    assert "Berlin" in printed
    assert "Paris" not in printed


def test_example_of_a_test_passes() -> None:
    example = TESTING.replace("shop.tasks.report", "tests.app.tasks.echo")
    _run(example)["test_runs_record_the_city"]()


def test_documented_fields_match_the_code() -> None:
    (omitted,) = re.findall(r"doesn't contain them:\n(.*?)\.\n", PAGE, re.DOTALL)
    recorded = {field.name for field in RECORDED_FIELDS}
    assert set(re.findall(r"`(\w+)`", omitted)) == {
        field.name for field in PORTABLE_JOB_FIELDS if field.name not in recorded
    }
    job = make_idle_job()
    control.trigger(job)
    run_due(jobs=[job])
    attempt = Attempt.objects.select_related("definition", "run__job").get()
    table = PAGE.split("it has these fields:")[1]
    document = definition_document(attempt)
    assert document is not None
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [*document]
    for model, name in re.findall(r"`(Attempt|Definition)\.(\w+)`", PAGE):
        {"Attempt": Attempt, "Definition": Definition}[model]._meta.get_field(name)
    for command in re.findall(r"manage\.py dcron (\w+)", PAGE):
        assert command in SUBCOMMANDS
