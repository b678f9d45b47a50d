"""Test ``dcron export``: selection of jobs, syntax and destination."""

import json
from io import StringIO
from pathlib import Path

import pytest
import yaml
from django.core.management import call_command

from django_dcron.jobs import portable
from tests.factories import make_idle_job
from tests.management.calling import call

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def three_jobs() -> None:
    make_idle_job(name="report", tags=["billing"])
    make_idle_job(name="import", namespace="shop")
    make_idle_job(name="add")


def exported(*arguments: str) -> list[str]:
    code, out, err = call("export", *arguments)
    assert (code, err) == (0, "")
    return [job["name"] for job in json.loads(out)["jobs"]]


def test_export_writes_all_or_selected_jobs() -> None:
    assert exported() == ["add", "report", "import"]
    assert exported("--namespace", "shop") == ["import"]
    assert exported("--tag", "billing") == ["report"]
    assert exported("shop/import", "add", "import") == ["add", "import"]


def test_export_to_file_uses_syntax_of_its_suffix(tmp_path: Path) -> None:
    for name in ("jobs.yaml", "jobs.yml", "jobs.json", "jobs"):
        path = tmp_path / name
        code, out, _err = call("export", "--output", str(path))
        assert (code, out) == (0, f"3 jobs written to {path}.\n")
        text = path.read_text()
        assert text.startswith("format:" if name.endswith("ml") else "{")
        assert yaml.safe_load(text)["version"] == 1
    call("export", "report", "--format", "yaml", "--output", str(tmp_path / "jobs"))
    assert (
        len(
            portable.read_document(
                (tmp_path / "jobs").read_text(), portable.DocumentSyntax.YAML
            ).entries
        )
        == 1
    )


@pytest.mark.parametrize("tags", ["billing", ["billing"]])
def test_filter_from_python_may_be_one_text(tags: str | list[str]) -> None:
    out = StringIO()
    call_command("dcron", "export", tag=tags, stdout=out)
    assert [job["name"] for job in json.loads(out.getvalue())["jobs"]] == ["report"]


def test_export_writes_yaml_to_standard_output() -> None:
    assert call("export", "report", "--format", "yaml").out.startswith(
        "format: django-dcron\nversion: 1\njobs:\n"
    )


def test_export_rejects_invalid_selection_or_path(tmp_path: Path) -> None:
    assert call("export", "nobody")[0] == 2
    assert call("export", "report", "--namespace", "shop")[:2] == (2, "")
    assert call("export", "report", "--source", "code")[:2] == (2, "")
    code, _out, err = call("export", "--output", str(tmp_path / "no" / "such"))
    assert code == 2
    assert ("--output" in err, err.count(str(tmp_path))) == (True, 1)
    assert call("export", "--search", "nobody") == (
        1,
        "",
        "No jobs match; nothing was written.",
    )
