"""Test the drawing of a chain: a graph in a wide window, and a nested list on a phone."""

from itertools import combinations
from typing import NamedTuple

import pytest
from django.urls import reverse
from playwright.sync_api import Page

from django_dcron.models import Job, Run
from django_dcron.policies.lifecycle import Trigger
from django_dcron.runs.chains import follower_key
from tests.browser.accessibility import assert_accessible_and_fits
from tests.browser.conftest import PHONE
from tests.factories import make_idle_job, make_run

pytestmark = pytest.mark.browser

AFTER = {
    "import_orders": {},
    "write_invoices": {"import_orders": "succeeded"},
    "update_stock": {"import_orders": "succeeded"},
    "send_invoices": {"write_invoices": "succeeded"},
    "notify_accounting": {"write_invoices": "failed"},
    "order_supplies": {"update_stock": "ended"},
}


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        beside = self.right <= other.left or other.right <= self.left
        return not (beside or self.bottom <= other.top or other.bottom <= self.top)


@pytest.fixture
def second_run(db: None) -> Run:
    """Return the second run of a chain whose last runs don't exist yet."""
    jobs: dict[str, Job] = {}
    for name, after in AFTER.items():
        jobs[name] = make_idle_job(name=name, after=after)
    first = make_run(jobs["import_orders"], "succeeded")
    runs = [
        make_run(jobs[name], state, trigger=Trigger.CHAIN, idempotency_key=follower_key(first.pk))
        for name, state in (("write_invoices", "failed"), ("update_stock", "running"))
    ]
    return runs[0]


def boxes(page: Page) -> dict[str, Box]:
    found = page.locator(".dcron-chain-graph li > div").evaluate_all(
        "steps => steps.map(step => { const box = step.getBoundingClientRect();"
        " return [step.querySelector('a, span')?.textContent || step.textContent,"
        " box.left, box.top, box.right, box.bottom]; })"
    )
    names = {name: next(each for each in found if name in each[0]) for name in AFTER}
    assert len(found) == len(names)
    return {name: Box(*values) for name, (_text, *values) in names.items()}


@pytest.mark.parametrize("kind", ["job", "run"])
def test_chain_is_a_graph_in_a_wide_window_and_a_list_on_a_phone(
    page: Page, second_run: Run, kind: str
) -> None:
    key = second_run.pk if kind == "run" else second_run.job_id
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(reverse(f"admin:django_dcron_{kind}_change", args=[key]))
    drawn = boxes(page)
    assert not any(one.overlaps(other) for one, other in combinations(drawn.values(), 2))
    for name, after in AFTER.items():
        for earlier in after:
            assert drawn[name].left > drawn[earlier].right, "a step is beside the one it follows"
    page.set_viewport_size({"width": PHONE, "height": 844})
    listed = boxes(page)
    for name, after in AFTER.items():
        for earlier in after:
            assert listed[name].top >= listed[earlier].bottom, "a step is below the one it follows"
    page.set_viewport_size({"width": 1280, "height": 900})
    assert_accessible_and_fits(page)
