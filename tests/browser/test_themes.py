"""Test the pages under the theme that DCRON_TEST_THEME names, or in the plain admin.

``.ci/run`` installs each theme and runs this module.
"""

import re

import pytest
from playwright.sync_api import Page, expect

from django_dcron.models import Run
from tests.browser.conftest import PHONE, WIDE, Browse
from tests.browser.overflow import elements_wider_than_window
from tests.browser.pages import PAGES, dcron_url
from tests.browser.sample import make_sample

pytestmark = pytest.mark.browser

MAIN_PAGES = (
    "index",
    "dashboard",
    "job list",
    "job add",
    "job",
    "why",
    "run list",
    "failed run",
    "attempt",
    "incident list",
    "incident",
    "incident rerun",
    "alert list",
    "node list",
    "node",
    "calendar",
    "freeze add",
)
READABLE, VISIBLE = 4.5, 3.0
"""The contrast of texts and of pictures that WCAG requires."""
CONTRAST = """
([front, frontStyle, back, backStyle]) => {
    const luminance = (element, style) => {
        const context = document.createElement("canvas").getContext("2d");
        context.fillStyle = getComputedStyle(element)[style];
        context.fillRect(0, 0, 1, 1);
        const [red, green, blue] = [...context.getImageData(0, 0, 1, 1).data].map((value) => {
            const part = value / 255;
            return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const [low, high] = [
        luminance(document.querySelector(front), frontStyle),
        luminance(document.querySelector(back), backStyle),
    ].sort((one, other) => one - other);
    return (high + 0.05) / (low + 0.05);
}
"""
SHOWN_ALTHOUGH_HIDDEN = """
() => [...document.querySelectorAll(".dcron-hidden")].filter((element) => {
    const { width, height } = element.getBoundingClientRect();
    return width > 1 || height > 1;
}).map((element) => element.outerHTML.slice(0, 200))
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_main_pages_work_under_theme(browse: Browse, scheme: str) -> None:
    sample, page = make_sample(), browse(scheme=scheme)
    for name in MAIN_PAGES:
        answer = page.goto(PAGES[name](sample))
        assert answer is not None
        assert answer.status == 200, name
        assert page.evaluate(SHOWN_ALTHOUGH_HIDDEN) == [], name
        if name == "index":
            expect(page.locator(".dcron-health-line")).to_be_visible()
        if name in ("job list", "run list"):  # Unfold has the saved filters in a row with others
            assert elements_wider_than_window(page) == [], name
        if name == "dashboard":
            assert contrast(page, ".dcron-tick", "fill", ".dcron-future", "fill") >= VISIBLE
            names = ".dcron-chart ul"
            assert contrast(page, f"{names} a", "color", names, "backgroundColor") >= READABLE
        if name == "job list":
            badge = ".dcron-badge.dcron-enabled"
            assert contrast(page, badge, "color", badge, "backgroundColor") >= READABLE
            add = page.locator("a[href^='/admin/django_dcron/job/add/']:not(#nav-sidebar a)")
            expect(add.first).to_be_visible()

    page.goto(PAGES["job"](sample))
    expect(page.locator("[name=schedule]")).to_have_css("border-top-style", "solid")
    number = Run.objects.count()
    page.locator("button[form='dcron-do-run_now']").click()  # no theme nests it in another form
    page.wait_for_url("**/run/*/change/")
    assert Run.objects.count() == number + 1


def test_errors_of_the_job_form_are_next_to_the_fields_under_theme(browse: Browse) -> None:
    page = browse()
    page.goto(dcron_url("job_add"))
    page.locator("[name=name]").fill("a")
    page.locator("[name=target]").fill("nope")
    page.locator("[name=schedule]").fill("61 * * * *")
    page.locator("[name=_save]").click()
    for schedule in ("61 * * * *", "62 * * * *"):  # as the server shows it, and as the preview does
        page.locator("[name=schedule]").fill(schedule)
        expect(page.locator("#id_schedule_error")).to_contain_text(schedule.split()[0])
        expect(page.locator("#id_target_error")).to_be_visible()
        expect(page.locator("#dcron-preview [data-dcron-field].dcron-hidden")).to_have_count(2)
        for field in ("target", "schedule"):
            expect(page.locator(f"#id_{field}_error")).to_be_in_viewport()
            expect(page.locator(f"[name={field}]")).to_have_attribute("aria-invalid", "true")

    page.locator("[name=schedule]").fill("30 3 * * *")
    expect(page.locator("#id_schedule_error")).to_have_count(0)
    expect(page.locator("#id_target_error")).to_be_visible()


MISPLACED_INPUTS = """
() => {
    const preview = document.getElementById("dcron-preview").getBoundingClientRect();
    const inputs = [...document.querySelectorAll("[data-dcron-open] :is(input, select, textarea)")]
        .map((input) => [input.name, input.getBoundingClientRect()])
        .filter(([name, place]) => name && place.width > 0);
    const overlap = (place) => place.right > preview.left && place.left < preview.right
        && place.bottom > preview.top && place.top < preview.bottom;
    return {
        narrow: inputs.filter(([name, { width }]) => width < 100).map(([name]) => name),
        overlapping: inputs.filter(([, place]) => overlap(place)).map(([name]) => name),
        found: inputs.length,
    };
}
"""


@pytest.mark.parametrize("width", [WIDE, 1300, PHONE])
def test_job_form_fits_under_theme(browse: Browse, width: int) -> None:
    """The preview covers no input, and an empty input is wide enough."""
    page = browse(width=width)
    page.goto(dcron_url("job_add"))
    placed = page.evaluate(MISPLACED_INPUTS)
    assert placed.pop("found") > 3
    assert placed == {"narrow": [], "overlapping": []}
    assert elements_wider_than_window(page) == []


CLIPPED_BUTTONS = """
() => [
    ...document.querySelectorAll("#result_list .dcron-row-buttons > .dcron-row-button"),
].filter((button) => {
    const cell = button.closest("td").getBoundingClientRect();
    const place = button.getBoundingClientRect();
    return place.right > cell.right + 1 || place.left < cell.left - 1
        || place.bottom > cell.bottom + 1;
}).map((button) => button.outerHTML)
"""


@pytest.mark.parametrize("name", ["job list", "run list"])
def test_list_works_on_a_phone_under_theme(browse: Browse, name: str) -> None:
    """Each row is a card, and the header still sorts."""
    page = browse(width=PHONE)
    page.goto(PAGES[name](make_sample()))
    table = page.locator("#result_list")
    expect(table.get_by_role("link").first).to_be_visible()
    expect(table).to_have_class(re.compile("dcron-cards"))
    expect(table.locator("thead input")).to_be_visible()
    if name == "job list":
        expect(table.locator("thead a:visible").first).to_be_visible()
        assert page.evaluate(CLIPPED_BUTTONS) == []


def contrast(page: Page, front: str, front_style: str, back: str, back_style: str) -> float:
    found: float = page.evaluate(CONTRAST, [front, front_style, back, back_style])
    return found
