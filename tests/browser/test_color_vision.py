"""Test that people who see few or no colors can tell the states of runs apart in every picture.

Chromium simulates how they see a page. The pictures of two states must then differ in shape or in
brightness.
"""

import base64
from collections.abc import Callable
from datetime import timedelta
from itertools import combinations
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from django_dcron.admin.jobs import list_row
from django_dcron.db.now import database_now
from django_dcron.models import Job
from tests.browser.conftest import Browse
from tests.browser.pages import dcron_url
from tests.factories import make_idle_job, make_run

pytestmark = pytest.mark.browser

MINUTE = timedelta(minutes=1)
STATES = ("succeeded", "failed", "cancelled", "missed", "skipped")
CHANNEL_DIFFERENCE = 40
"""A pixel differs if one of its channels, which range from 0 to 255, differs by this much."""
PIXELS_THAT_DIFFER = 6
READ_PIXELS = """
async (source) => {
    const image = new Image();
    image.src = source;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    return Array.from(context.getImageData(0, 0, image.width, image.height).data);
}
"""


@pytest.fixture
def job() -> Job:
    """A job with one run of each state, all of the same duration."""
    job, now = make_idle_job(name="grind"), database_now("default").replace(microsecond=0)
    for number, state in enumerate(STATES, 1):
        at = now - 9 * number * MINUTE
        times = {"scheduled_at": at, "due_at": at, "claimed_at": at, "finished_at": at + MINUTE}
        if state not in ("missed", "skipped"):
            times["started_at"] = at
        make_run(job, state, **times)
    return job


@pytest.fixture
def read_pixels(chromium: Browser) -> Callable[[bytes], list[int]]:
    blank = chromium.new_page()

    def read(image: bytes) -> list[int]:
        source = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        found: list[int] = blank.evaluate(READ_PIXELS, source)
        return found

    return read


def timeline(page: Page, job: Job) -> dict[str, Any]:
    """Return the areas of the states on the dashboard: a bar or a mark, with its lane."""
    page.goto(dcron_url("dashboard_changelist"))
    areas = {}
    for state in STATES:
        drawn = page.locator(f".dcron-lanes svg a .dcron-{state}").bounding_box()
        assert drawn
        middle = drawn["x"] + drawn["width"] / 2, drawn["y"] + drawn["height"] / 2
        areas[state] = {"x": middle[0] - 8, "y": middle[1] - 11, "width": 16, "height": 22}
    return areas


def durations(page: Page, job: Job) -> dict[str, Any]:
    """Return the areas of the states in the chart on a job's page."""
    page.goto(dcron_url("job_change", job.pk))
    bars = page.locator(".dcron-plot svg a .dcron-hit")
    return {state: bars.nth(number).bounding_box() for number, state in enumerate(STATES[::-1])}


def sparkline(page: Page, job: Job) -> dict[str, Any]:
    """Return the areas of the states in the list of jobs."""
    page.goto(dcron_url("job_changelist"))
    box = page.locator(".dcron-spark svg").bounding_box()
    assert box
    step = list_row.STEP
    return {
        state: {**box, "x": box["x"] + number * step, "width": step}
        for number, state in enumerate(STATES[::-1])
    }


@pytest.mark.parametrize("deficiency", ["deuteranopia", "achromatopsia"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("picture", [timeline, durations, sparkline])
def test_states_differ_without_their_colors(
    browse: Browse,
    job: Job,
    read_pixels: Callable[[bytes], list[int]],
    picture: Callable[[Page, Job], dict[str, Any]],
    scheme: str,
    deficiency: str,
) -> None:
    page = browse(scheme=scheme)
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setEmulatedVisionDeficiency", {"type": deficiency})
    seen = {}
    for state, area in picture(page, job).items():
        width, height = round(area["width"]), round(area["height"])
        clip = {**area, "width": width, "height": height}
        seen[state] = read_pixels(page.screenshot(clip=clip, full_page=True, animations="disabled"))

    alike = [
        pair
        for pair in combinations(STATES, 2)
        if count_differences(seen[pair[0]], seen[pair[1]]) < PIXELS_THAT_DIFFER
    ]
    assert alike == []
    if deficiency == "achromatopsia":  # the simulation works
        assert all(red == green == blue for red, green, blue in channels(seen["failed"]))


def channels(pixels: list[int]) -> list[tuple[int, ...]]:
    return [tuple(pixels[at : at + 3]) for at in range(0, len(pixels), 4)]


def count_differences(first: list[int], second: list[int]) -> int:
    assert len(first) == len(second)
    return sum(
        max(abs(a - b) for a, b in zip(one, other, strict=True)) >= CHANNEL_DIFFERENCE
        for one, other in zip(channels(first), channels(second), strict=True)
    )
