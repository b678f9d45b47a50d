"""Compare docs/how-to/chains.md with the code."""

import re
from datetime import UTC, datetime
from uuid import UUID

import pytest

from django_dcron import cron, targets
from django_dcron.jobs.sync import apply, plan
from django_dcron.models import Job, Link
from django_dcron.policies.chains import ChainCondition
from django_dcron.policies.lifecycle import Trigger
from django_dcron.runs.chains import follower_key
from django_dcron.testing import run_due, set_clock
from tests.docs.test_documents import ROOT

PAGE = (ROOT / "docs" / "how-to" / "chains.md").read_text()


@pytest.mark.django_db
def test_example_creates_the_documented_links() -> None:
    example, test = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with targets.isolated_registry():
        scope = {"cron": cron, "__name__": "example", "datetime": datetime, "UTC": UTC}
        exec(example + test, scope)  # noqa: S102 (our own document)
        with set_clock(datetime(2026, 1, 1, tzinfo=UTC)) as clock:
            scope["test_invoices_follow_the_import"](clock, run_due)  # type: ignore[operator]
        Job.objects.all().delete()
        assert {change.kind for change in apply(plan())} == {"create"}
    links = {(link.job.name, link.after.name, link.on) for link in Link.objects.all()}
    assert links == {
        ("write_invoices", "import_orders", "succeeded"),
        ("notify_accounting", "import_orders", "failed"),
        ("notify_accounting", "write_invoices", "failed"),
    }
    assert Job.objects.filter(enabled=True).count() == 3


def test_documented_events_trigger_and_key_match_the_code() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(ChainCondition)
    assert f"the trigger `{Trigger.CHAIN}`" in PAGE
    assert re.search(r"idempotency key is\s+`after run ID`", PAGE)
    assert follower_key(UUID(int=0)) == f"after run {UUID(int=0)}"
