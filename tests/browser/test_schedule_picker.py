"""Test the schedule picker of the job form: both directions between choices and schedule text."""

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.pages import dcron_url

pytestmark = pytest.mark.browser


@pytest.fixture
def picker(page: Page) -> Locator:
    page.goto(dcron_url("job_add"))
    return page.locator("[data-dcron-picker]")


@pytest.fixture
def schedule(page: Page) -> Locator:
    return page.locator("[name=schedule]")


def pick(picker: Locator, name: str) -> Locator:
    return picker.locator(f"[data-dcron-pick={name}]")


def test_choices_write_schedule_text_and_update_the_preview(
    page: Page, picker: Locator, schedule: Locator
) -> None:
    picker.locator("summary").click()
    expect(schedule).to_have_value("0 9 * * *")
    expect(page.locator("#dcron-preview .dcron-words")).to_contain_text("09:00")
    pick(picker, "time").fill("18:05")
    expect(schedule).to_have_value("5 18 * * *")
    expect(page.locator("#dcron-preview .dcron-words")).to_contain_text("18:05")

    pick(picker, "unit").select_option("weekdays")
    expect(schedule).to_have_value("5 18 * * MON-FRI")
    picker.get_by_label("Sat", exact=True).check()
    picker.get_by_label("Mon", exact=True).uncheck()
    expect(schedule).to_have_value("5 18 * * TUE,WED,THU,FRI,SAT")
    for day in ("Tue", "Wed", "Thu", "Fri", "Sat"):
        picker.get_by_label(day, exact=True).uncheck()
    expect(schedule).to_have_value("5 18 * * SAT")  # no day: the schedule stays
    expect(picker.locator("[data-dcron-incomplete]")).to_be_visible()

    pick(picker, "unit").select_option("monthdays")
    expect(picker.locator("[data-dcron-incomplete]")).to_be_hidden()
    pick(picker, "monthday").select_option("LW")
    expect(schedule).to_have_value("5 18 LW * *")
    pick(picker, "unit").select_option("hours")
    pick(picker, "hours").select_option("6")
    pick(picker, "minute").fill("30")
    expect(schedule).to_have_value("30 */6 * * *")
    pick(picker, "minute").fill("75")
    expect(schedule).to_have_value("30 */6 * * *")
    pick(picker, "unit").select_option("once")
    expect(picker.locator("[data-dcron-incomplete]")).to_be_visible()
    pick(picker, "at").fill("2099-12-07T09:00")
    expect(schedule).to_have_value("@at 2099-12-07T09:00")
    pick(picker, "unit").select_option("minutes")
    expect(schedule).to_have_value("*/15 * * * *")
    expect(page.locator("#dcron-preview [data-dcron-field=schedule]")).to_have_count(0)


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("*/20 * * * *", {"unit": "minutes", "minutes": "20"}),
        ("* * * * *", {"unit": "minutes", "minutes": "1"}),
        ("@hourly", {"unit": "hours", "hours": "1", "minute": "0"}),
        ("5 */8 * * *", {"unit": "hours", "hours": "8", "minute": "5"}),
        ("30 3 * * *", {"unit": "days", "time": "03:30"}),
        ("0 7 * * mon-fri", {"unit": "weekdays", "time": "07:00"}),
        ("0 7 31 * *", {"unit": "monthdays", "monthday": "31", "time": "07:00"}),
        ("0 7 L * *", {"unit": "monthdays", "monthday": "L", "time": "07:00"}),
        ("@at 2099-12-07T09:00", {"unit": "once", "at": "2099-12-07T09:00"}),
    ],
)
def test_typed_schedule_sets_the_choices(
    text: str, choices: dict[str, str], picker: Locator, schedule: Locator
) -> None:
    schedule.fill(text)
    picker.locator("summary").click()
    for name, value in choices.items():
        expect(pick(picker, name)).to_have_value(value)
    expect(picker.locator("[data-dcron-replaces]")).to_be_hidden()
    expect(schedule).to_have_value(text)


@pytest.mark.parametrize(
    "text",
    [
        "*/7 * * * *",
        "0 9 * 1 *",
        "0 9 1 * MON",
        "0 9 * * FRI#2",
        "@every 90m",
        "constructor",
        "0 9 * * *\n0 18 * * *",
    ],
)
def test_schedule_that_the_picker_cannot_show_stays_until_a_choice(
    text: str, picker: Locator, schedule: Locator
) -> None:
    schedule.fill(text)
    picker.locator("summary").click()
    expect(picker.locator("[data-dcron-replaces]")).to_be_visible()
    expect(schedule).to_have_value(text)
    pick(picker, "time").fill("10:00")
    expect(schedule).to_have_value("0 10 * * *")
    expect(picker.locator("[data-dcron-replaces]")).to_be_hidden()


def test_picker_is_not_submitted(picker: Locator) -> None:
    assert picker.locator("[name]").count() == 0
