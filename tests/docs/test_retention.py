"""Compare docs/how-to/retention.md with the code."""

import ast
import re

import pytest

from django_dcron.conf import Settings
from django_dcron.models import Job, Run
from django_dcron.policies import retention
from django_dcron.runs import retention as run_retention
from django_dcron.scheduler import pruner
from django_dcron.targets.declared_fields import JobFields
from tests.docs.test_documents import ROOT
from tests.factories import make_idle_job, make_run

PAGE = (ROOT / "docs" / "how-to" / "retention.md").read_text()
PROSE = " ".join(PAGE.split())


def test_documented_settings_fields_and_defaults_match_the_code() -> None:
    rows = re.findall(r"^\| `DCRON_(\w+)` \| `(\w+)` \| (\S+)", PAGE, re.MULTILINE)
    for setting, field, default in rows:
        value = vars(Settings)[setting].default
        assert default == (str(value.days) if value is not None else "`None`")
        assert Job._meta.get_field(field).null
        assert field in JobFields.__annotations__
    assert {field for _, field, _ in rows} == set(run_retention.RETENTION_FIELDS)


def test_documented_intervals_and_batch_sizes_match_the_code() -> None:
    assert (pruner.FIRST_ROUND_AFTER, pruner.PAUSE_BETWEEN_ROUNDS) == (60, 600)
    assert pruner.MAX_BUSY_SHARE == 0.1
    assert "one minute after the node's start, and each further round ten minutes after" in PROSE
    assert (run_retention.BATCH_SIZE, retention.ROWS_AT_ONCE) == (500, 1000)
    assert "at most 500 runs, or about 1,000 rows" in PROSE


def test_examples_parse_as_python() -> None:
    declaration, deletion = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    ast.parse(declaration)
    ast.parse(deletion)


@pytest.mark.django_db
def test_documented_deletion_erases_the_history() -> None:
    job = make_idle_job()
    make_run(job, "succeeded")
    *_, deletion = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(deletion, {"job": job})  # noqa: S102 - the documented code
    assert not Run.objects.exists()
