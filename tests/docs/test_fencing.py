"""Execute the examples of docs/how-to/fencing.md."""

import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from django.db import connection

from django_dcron import PermanentFailure, targets
from django_dcron.execution.current import CurrentRun, as_current
from django_dcron.models import Attempt
from tests.docs.test_documents import ROOT
from tests.execution.conftest import reread
from tests.factories import make_idle_job, make_run

PAGE = (ROOT / "docs" / "how-to" / "fencing.md").read_text()
TABLE = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
CODE = re.findall(r"```python\n(from django.*?)```", PAGE, re.DOTALL)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def example() -> Iterator[dict[str, Any]]:
    """The names that the page's code defines, and its table with one row."""
    names: dict[str, Any] = {"__name__": "example"}
    with targets.isolated_registry(), connection.cursor() as cursor:
        for code in CODE:
            exec(code, names)  # noqa: S102 (our own document)
        cursor.execute(TABLE[0])
        cursor.execute("INSERT INTO stock (product, level) VALUES ('bread', 0)")
        yield names
        cursor.execute("DROP TABLE stock")


def execution() -> CurrentRun:
    """An execution whose attempt has just started."""
    run = make_run(make_idle_job(), "running")
    attempt = Attempt.objects.get(run=run)
    return CurrentRun(
        reread(run), attempt.started_at, token=attempt.token, worker="w", fence=attempt.pk
    )


def stock() -> tuple[int, int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT level, fence FROM stock WHERE product = 'bread'")
        (row,) = cursor.fetchall()
    return tuple(row)


def test_earlier_execution_changes_nothing_once_a_later_one_has_written(
    example: dict[str, Any],
) -> None:
    earlier, later = execution(), execution()
    count_boxes = mock.Mock(side_effect=[5, 6, 7, 8])
    example["count_boxes"] = count_boxes
    for run, level in ((earlier, 5), (later, 6), (later, 7)):
        with as_current(run):
            example["update_stock"]()
        assert stock() == (level, run.fence)
    with as_current(earlier), pytest.raises(PermanentFailure):
        example["update_stock"]()
    assert stock() == (7, later.fence)


def test_guarded_transaction_writes_all_rows_or_none(example: dict[str, Any]) -> None:
    earlier, later = execution().fence, execution().fence
    example["write_all"]([(1, "bread")], later)
    with pytest.raises(PermanentFailure):
        example["write_all"]([(2, "bread")], earlier)
    assert stock() == (1, later)
