"""Run the examples of docs/how-to/limits.md, and compare its values with the code."""

import re
from datetime import timedelta

import pytest

from django_dcron import control, targets
from django_dcron.jobs.sync import apply, plan
from django_dcron.models import Job, Limit, Run
from django_dcron.models.limit import LARGEST_MAXIMUM
from django_dcron.utils.durations import write_duration
from tests.docs.test_documents import ROOT
from tests.execution.conftest import deliver
from tests.factories import make_idle_job, make_run

PAGE = (ROOT / "docs" / "how-to" / "limits.md").read_text()
PROSE = " ".join(PAGE.split())


@pytest.mark.django_db
def test_examples_limit_the_documented_jobs_and_customers() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    creation, starts, declaration, by_customer, trigger = examples
    names = {"control": control, "Limit": Limit}
    exec(creation, {})  # noqa: S102 (the project's own page)
    exec(starts, names)  # noqa: S102
    sms = Limit.objects.get(name="sms")
    within = write_duration(sms.interval or timedelta())
    assert f"limit sms: {sms.max_started} of {sms.max_started} started within {within}" in PROSE
    with targets.isolated_registry():
        exec(declaration, {"__name__": "shop"})  # noqa: S102
        assert {change.kind for change in apply(plan())} == {"create"}
    jobs = Job.objects.order_by("name")
    assert [(job.name, job.limit_id) for job in jobs] == [
        ("collect_payments", "payment-api"),
        ("send_invoices", "payment-api"),
    ]
    (by_name,) = re.findall(r"`(Job\(limit_id=.*?\))`", PROSE)
    assert eval(by_name, {"Job": Job}).limit == jobs[0].limit  # noqa: S307 (the project's own page)
    collect = jobs.get(name="collect_payments")
    started = [bool(deliver(make_run(collect))) for _ in range(4)]
    assert started == [True, True, True, False]
    reason = Run.objects.get(state="waiting").reason
    assert f"`{reason}`" in PROSE

    exec(by_customer, names)  # noqa: S102
    customers = Limit.objects.get(name="customers")
    job = make_idle_job(limit=customers, overlap_policy="allow", target="tests.app.tasks.echo")
    for _ in range(2):
        exec(trigger, {"control": control, "job": job})  # noqa: S102
    first, second = Run.objects.filter(job=job).order_by("pk")
    assert deliver(first)
    assert deliver(second) is None
    other = make_run(job, kwargs={"customer_id": 8}, trigger="manual")
    assert deliver(other)


def test_documented_range_matches_the_code() -> None:
    assert f"from 1 to {LARGEST_MAXIMUM:,}" in PROSE
