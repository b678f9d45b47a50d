"""Test the dashboard's timeline and heat map: geometry, texts and permissions."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import translation
from django.utils.html import strip_tags
from pytest_django import Settings

from django_dcron import control
from django_dcron.admin.dashboard import filter as job_filter
from django_dcron.admin.dashboard import load_heat_map, timeline, viewer
from django_dcron.diagnosis.load import DAYS
from django_dcron.diagnosis.timeline import LANES
from django_dcron.models import Cursor, Job, Run
from django_dcron.policies.lifecycle import State
from tests.admin.conftest import StaffWith, make_job, run_url, section_url

pytestmark = pytest.mark.django_db

PAGE = "/admin/django_dcron/dashboard/"
EVIL = "<script>alert(1)</script>"
NOON = datetime(2026, 3, 2, 12, 0, 7, tzinfo=UTC)  # a Monday
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture(autouse=True)
def _at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "database_now", lambda using: NOON)


def run_of(job: Job, at: datetime, state: str = "succeeded", **values: Any) -> Run:
    """Create a run that started 250 ms late and took 90 s, unless ``values`` override that."""
    times: dict[str, Any] = {"due_at": at, "claimed_at": at}
    if state in ("succeeded", "failed", "running"):
        times["started_at"] = at + timedelta(milliseconds=250)
    if state in ("succeeded", "failed"):
        times["finished_at"] = times["started_at"] + 90 * SECOND
    return Run.objects.create(job=job, scheduled_at=at, state=state, **times | values)


def draw_timeline(**query: str) -> timeline.TimelinePicture:
    found: timeline.TimelinePicture = timeline.context(_viewer(**query))["timeline"]
    return found


def draw_heat_map(**query: str) -> load_heat_map.LoadHeatMap:
    found: load_heat_map.LoadHeatMap = load_heat_map.context(_viewer(**query))["load"]
    return found


def _viewer(**query: str) -> viewer.Viewer:
    return viewer.Viewer.of(_request(**query), admin.site)


def _request(**query: str) -> Any:
    request = RequestFactory().get(PAGE, query)
    request.user = User(username="boss", is_superuser=True, is_staff=True, is_active=True)
    return request


def section_html(client: Client, name: str, query: str = "") -> str:
    answer = client.get(section_url(name, query))
    assert answer.status_code == 200
    return answer.content.decode()


def text(html: str) -> str:
    return " ".join(strip_tags(html).split())


# --- timeline -------------------------------------------------------------------------------------


def test_run_is_drawn_as_bar_from_start_to_end() -> None:
    job = make_job()
    run = run_of(job, NOON - 30 * MINUTE - 7 * SECOND, "failed")
    (row,) = draw_timeline().rows
    (bar,) = row.bars
    assert (bar.x, bar.width) == (pytest.approx(25, abs=0.02), pytest.approx(1.25, abs=0.02))
    assert (bar.state, bar.url) == ("failed", run_url(run))
    for value in ("report", "2026-03-02 11:30:00", "250 ms", "1m 30s"):
        assert value in bar.title
    assert row.y < bar.y < bar.y + bar.height < row.y + timeline.LANE


def test_states_have_signs_and_occurrences_without_run_are_drawn() -> None:
    job = make_job(schedule="*/10 * * * *")
    start = NOON - 7 * SECOND
    for number, state in enumerate(("succeeded", "failed", "running", "skipped"), 1):
        run_of(job, start - 10 * number * MINUTE, state)
    for state in ("succeeded", "failed"):  # in one minute
        run_of(job, start - 55 * MINUTE + SECOND * (state == "failed"), state)
    Cursor.objects.filter(pk=job.pk).update(next_at=start - 10 * MINUTE)

    picture = draw_timeline()
    (row,) = picture.rows
    signs = [bar.symbol for bar in sorted(row.bars, key=lambda bar: bar.x)]
    assert sorted(filter(None, signs)) == sorted(
        [timeline.SYMBOLS[State.FAILED]] * 2 + [timeline.SYMBOLS[State.RUNNING]]
    )
    assert [shape.x for shape in row.without_run] == pytest.approx([41.6, 50], abs=0.1)
    assert picture.has_without_run
    assert {entry.symbol for entry in picture.legend if entry.state == "failed"} == {signs[0]}


def test_bar_of_running_run_is_clipped_to_axis_and_ends_at_now() -> None:
    job = make_job()
    run_of(job, NOON - 5 * HOUR, "running")
    (row,) = draw_timeline().rows
    (bar,) = row.bars
    assert (bar.x, bar.width) == (0, 50)
    assert bar.state == "running"
    assert "2026-03-02 07:00:07" in bar.title


def test_run_that_did_not_start_is_drawn_as_mark() -> None:
    job = make_job()
    for number, state in enumerate(("missed", "skipped", "cancelled", "queued")):
        run_of(
            job,
            NOON - 7 * SECOND - (number + 1) * 12 * MINUTE,
            state,
            missed_before=3 * (state == "missed"),
        )
    (row,) = draw_timeline().rows
    assert row.bars == ()
    assert [(mark.x, mark.state) for mark in row.marks] == [
        (10, "queued"),
        (20, "cancelled"),
        (30, "skipped"),
        (40, "missed"),
    ]
    assert re.findall(r"\d+", row.marks[-1].title.split("\n")[1]) == ["3"]
    assert all("\n" not in mark.title for mark in row.marks[:-1])


def test_shapes_have_minimum_width_and_stay_within_bounds() -> None:
    job = make_job(schedule="* * * * * *")
    for at in (NOON - 7 * SECOND, NOON - HOUR, NOON - 30 * MINUTE):
        run_of(job, at, finished_at=at + 251 * SECOND / 1000)
    (row,) = draw_timeline().rows
    assert len(row.bars) == 3
    for shape in (*row.bars, *row.upcoming):
        assert shape.width >= timeline.MIN_WIDTH
        assert shape.x >= 0
        assert shape.x + shape.width <= 100


def test_runs_of_same_minute_are_stacked_by_state() -> None:
    job = make_job()
    first = datetime(2026, 3, 2, 11, 40, tzinfo=UTC)
    for second in range(1, 59):
        run_of(job, first + second * SECOND, finished_at=first + (second + 1) * SECOND)
    run_of(job, first, "failed", finished_at=first + SECOND)
    (row,) = draw_timeline().rows
    failed, succeeded = row.bars
    assert (failed.state, succeeded.state) == ("failed", "succeeded")
    assert (failed.x, failed.width) == (succeeded.x, succeeded.width)
    assert failed.y + failed.height == succeeded.y
    assert failed.height + succeeded.height == pytest.approx(timeline.BAR, abs=0.2)
    assert failed.height >= 3
    assert " 58 " in succeeded.title


def test_bar_of_several_runs_links_to_list_of_those_runs(admin_client: Client) -> None:
    job, other = make_job(), make_job("other")
    first = datetime(2026, 3, 2, 11, 40, tzinfo=UTC)
    for second in range(3):
        run_of(job, first + second * SECOND)
        run_of(other, first + second * SECOND)
    run_of(job, first + 61 * SECOND)
    row = next(row for row in draw_timeline().rows if row.name == "report")
    found = admin_client.get(row.bars[0].url).context["cl"].result_list
    assert {run.scheduled_at for run in found} == {first + second * SECOND for second in range(3)}
    assert {run.job for run in found} == {job}


def test_upcoming_occurrences_are_drawn_as_ticks_or_band() -> None:
    for name, schedule in (
        ("a", "0,15,30 13 * * *"),
        ("b", "* * * * * *"),
        ("c", "0 3 * * *"),
        ("d", "@hourly"),
    ):
        Cursor.objects.filter(pk=make_job(name, schedule=schedule).pk).update(next_at=NOON)
    control.pause(make_job("e"))
    a, b, c, d, e = draw_timeline().rows
    assert [tick.x for tick in a.upcoming] == [100]
    (band,) = b.upcoming
    assert band.x == 50.11  # 1 s from now, and now is 7 s after the axis's time
    assert band.width == pytest.approx(50, abs=0.5)
    (tick,) = d.upcoming
    assert tick.title.startswith("d: ")
    assert tick.title.endswith(" 2026-03-02 13:00:00")
    assert (c.upcoming, e.upcoming) == ((), ())
    assert c.note.endswith(" 2026-03-03 03:00")
    assert e.note
    assert not re.search(r"\d", e.note)


def test_grid_and_now_use_site_time_zone(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Kolkata"
    make_job()
    picture = draw_timeline()
    assert [line.label for line in picture.lines] == [
        *("16:30", "16:45", "17:00", "17:15", "17:30", "17:45", "18:00", "18:15", "18:30")
    ]
    assert (picture.now.x, picture.now.label[-8:], picture.zone) == (50, "17:30:00", "Asia/Kolkata")


def test_timeline_is_identical_until_axis_moves(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_of(make_job(), NOON - HOUR / 2, "running")
    first = section_html(admin_client, "timeline")
    monkeypatch.setattr(viewer, "database_now", lambda using: NOON + 7 * SECOND)
    assert section_html(admin_client, "timeline") == first
    monkeypatch.setattr(viewer, "database_now", lambda using: NOON + 8 * SECOND)
    assert section_html(admin_client, "timeline") != first


@pytest.mark.parametrize("state", ["running", "succeeded", "queued"])
def test_run_after_rounded_axis_time_is_drawn_at_now(state: str) -> None:
    """The axis's time is rounded down, so events since then are drawn at its current end."""
    run = run_of(
        make_job(), NOON, state, **{"finished_at": NOON + SECOND} if state == "succeeded" else {}
    )
    (row,) = draw_timeline().rows
    (shape,) = row.bars or row.marks
    assert shape.url == run_url(run)
    assert 50 <= shape.x <= 50.2
    assert 0 <= shape.width <= timeline.MIN_WIDTH


def test_timeline_caption_counts_shown_and_matching_jobs(admin_client: Client) -> None:
    for number in range(LANES + 1):
        make_job(f"job-{number}")
    assert re.findall(r"\d+", draw_timeline().caption) == [str(LANES), str(LANES + 1)]
    assert draw_timeline().caption in text(section_html(admin_client, "timeline"))
    assert re.findall(r"\d+", draw_timeline(q="b-30").caption) == ["1"]
    assert "data-dcron-no-match" not in section_html(admin_client, "timeline", "q=b-30")
    assert "data-dcron-no-match" in section_html(admin_client, "timeline", "namespace=none")


def test_timeline_and_heat_map_depend_on_permissions(staff_with: StaffWith) -> None:
    run_of(make_job(), NOON - HOUR / 2, "failed")
    everything = section_html(staff_with("view_dashboard", "view_job", "view_run"), "timeline")
    assert 'class="dcron-fill dcron-failed" x=' in everything
    assert re.search("[Ff]ailed: 1", text(everything))
    only_jobs = section_html(staff_with("view_dashboard", "view_job"), "timeline")
    assert "report" in text(only_jobs)
    assert "failed" not in only_jobs.lower()
    request = _request()
    request.user = User.objects.create_user("nobody", is_staff=True)
    nobody = viewer.Viewer.of(request, admin.site)
    assert timeline.context(nobody) == {"timeline": None}
    assert load_heat_map.context(nobody) == {"load": None}
    assert job_filter.context(request, admin.site) == {"filter": None}


def test_timeline_needs_few_queries(admin_client: Client) -> None:
    for number in range(LANES + 5):
        run_of(make_job(f"job-{number}"), NOON - HOUR / 2)
    with CaptureQueriesContext(connection) as captured:
        draw_timeline()
    assert len(captured) <= 10


# --- heat map -------------------------------------------------------------------------------------


def numbers(message: str) -> list[str]:
    """Return the numbers and times of a sentence, in their order."""
    return re.findall(r"(?:[A-Z]\w+day )?\d[\d:,]*(?<!,)", message)


def test_heat_map_cells_count_occurrences_per_hour(settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    make_job(schedule="*/10 3 * * TUE", timezone="Europe/Berlin")
    make_job("b", schedule="0 4 * * *", timezone="Europe/Berlin")
    picture = draw_heat_map()
    assert [day.label for day in picture.days][:2] == ["Mon 2 Mar", "Tue 3 Mar"]
    tuesday = picture.days[1].cells
    assert [cell.number for cell in tuesday if cell][2:6] == [0, 6, 1, 0]
    assert tuesday[3]
    assert tuesday[3].title.startswith("Tue 03:00: 6 ")
    assert [(cell.opacity > 0) for cell in tuesday if cell][2:6] == [False, True, True, False]
    assert (picture.least, picture.greatest, picture.swatches[-1]) == ("1", "6", 1.0)
    (now,) = [cell for day in picture.days for cell in day.cells if cell and cell.is_now]
    assert now.title.startswith("Mon 13:00: 0 ")
    assert numbers(picture.busiest) == ["13", "Tuesday 03:00", "6", "0"]


def test_heat_map_summarizes_uniform_and_empty_week() -> None:
    assert numbers(draw_heat_map().busiest) == [str(DAYS)]
    assert {cell.opacity for day in draw_heat_map().days for cell in day.cells if cell} == {0}
    make_job(schedule="* * * * * *")
    assert numbers(draw_heat_map().busiest) == ["604,800", "3,600"]
    assert len(draw_heat_map().swatches) == 1


def test_similar_counts_have_similar_opacity() -> None:
    make_job(schedule="* * * * *")
    make_job("b", schedule="0 2 * * *")
    picture = draw_heat_map()
    shades = {cell.number: cell.opacity for day in picture.days for cell in day.cells if cell}
    assert shades[61] == 1
    assert shades[60] > 0.9
    assert (picture.least, picture.greatest) == ("30", "61")


@pytest.mark.parametrize(
    ("today", "missing", "twice"), [("2026-03-24", 1, 0), ("2026-10-20", 0, 1)]
)
def test_heat_map_handles_days_with_clock_change(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, today: str, missing: int, twice: int
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    monkeypatch.setattr(
        viewer, "database_now", lambda using: datetime.fromisoformat(f"{today}T12:00+00:00")
    )
    make_job(schedule="30 * * * *")
    cells = [cell for day in draw_heat_map().days for cell in day.cells]
    assert len(cells) == 168
    assert cells.count(None) == missing
    assert [cell.number for cell in cells if cell].count(2) == twice
    assert all(0 < cell.opacity <= 1 for cell in cells if cell)


@pytest.mark.parametrize(
    ("schedules", "message"),
    [
        (["0 * * * *"] * 12, ["12", "0"]),
        (["0 * * * *"] * 12 + ["0 3 * * *"] * 2, ["12", "14", "0"]),
        (["30 3 * * *"] * 12, ["12", "03:30"]),
        (["0 9 * * MON,FRI"] * 12, ["12", "09:00"]),
        (["0 8,9 * * *"] * 12, ["12", "0", "14", "7"]),
        (
            ["0 8,9 * * *"] * 12 + ["0 9 * * SUN"],
            ["12", "13", "0", "14", "7", "Sunday 09:00"],
        ),
    ],
)
def test_advice_names_crowded_times(schedules: list[str], message: list[str]) -> None:
    for number, schedule in enumerate(schedules):
        make_job(f"job-{number}", schedule=schedule)
    (advice,) = draw_heat_map().advice
    assert numbers(advice.text) == message
    assert ("Monday, Friday" in advice.text) == ("MON,FRI" in schedules[0])
    assert re.findall("<code>(.*?)</code>", advice.remedy) == ["H"]
    assert re.findall(r"\d+", advice.remedy)[0] in "1234"


def test_advice_links_to_lists_of_its_jobs(admin_client: Client) -> None:
    for number in range(12):
        make_job(f"job-{number}", schedule="*/15 * * * *" if number else "0 * * * *")
    make_job("another", schedule="*/15 * * * * *")
    control.pause(make_job("paused", schedule="*/15 * * * *"))
    html = section_html(admin_client, "load")
    (advice,) = draw_heat_map().advice
    assert "<code>H/15</code>, <code>H</code>" in html
    assert [words for _, words in advice.links] == ["11 jobs: */15 * * * *", "1 job: 0 * * * *"]
    for (url, _), number in zip(advice.links, (11, 1), strict=True):
        assert admin_client.get(url).context["cl"].result_count == number


def test_advice_links_match_only_counted_jobs(admin_client: Client) -> None:
    """The links of an advice don't match other jobs with the same schedule text.

    Those jobs have another namespace, name or time zone, or are quarantined.
    """
    for number in range(12):
        for namespace, zone in (
            ("shop", "Asia/Tokyo"),
            ("shop", "Europe/Berlin"),
            ("other", "Asia/Tokyo"),
        ):
            values: dict[str, Any] = {
                "namespace": namespace,
                "timezone": zone,
                "schedule": "0 3 * * *",
            }
            make_job(f"daily-{zone[:4]}{number}", **values)
        prefixed = "CRON_TZ=Asia/Tokyo 30 5 * * *"
        make_job(f"daily-prefix{number}", namespace="shop", timezone="UTC", schedule=prefixed)
        make_job(f"report-{number}", namespace="shop", timezone="Asia/Tokyo", schedule="0 3 * * *")
    broken = make_job("daily-broken", namespace="shop", timezone="Asia/Tokyo", schedule="0 3 * * *")
    Cursor.objects.filter(pk=broken.pk).update(problem="vanished")

    links = [
        link
        for advice in draw_heat_map(namespace="shop", q="daily").advice
        for link in advice.links
    ]

    assert sorted(words for _, words in links) == [
        "12 jobs: 0 3 * * * (Asia/Tokyo)",
        "12 jobs: 0 3 * * * (Europe/Berlin)",
        "12 jobs: CRON_TZ=Asia/Tokyo 30 5 * * *",
    ]
    for url, _ in links:
        assert admin_client.get(url).context["cl"].result_count == 12


def test_evenly_spread_jobs_get_no_advice(admin_client: Client) -> None:
    for number in range(12):
        make_job(f"job-{number}", schedule="H * * * *")
    assert "dcron-advice" not in section_html(admin_client, "load")


# --- timeline and heat map ------------------------------------------------------------------------


def test_pictures_have_visually_hidden_tables(admin_client: Client) -> None:
    run_of(make_job(schedule="0 13 * * *"), NOON - HOUR / 2)
    Cursor.objects.update(next_at=NOON + HOUR)
    lanes, cells = section_html(admin_client, "timeline"), section_html(admin_client, "load")
    for html in (lanes, cells):
        assert html.count("<table") == 1
        assert '<div class="dcron-hidden">\n    <table>' in html
    assert re.search(r'<th scope="row">report</th>\s*<td>[Ss]ucceeded: 1</td>\s*<td><time', lanes)
    assert len(re.findall("<td>", cells)) == 168


@pytest.mark.parametrize("name", ["timeline", "load"])
def test_names_are_escaped_and_geometry_is_not_localized(
    admin_client: Client, settings: Settings, name: str
) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    job = make_job(schedule="*/7 * * * *")
    Job.objects.filter(pk=job.pk).update(name=EVIL)
    Cursor.objects.filter(pk=job.pk).update(next_at=NOON + MINUTE)
    run_of(job, NOON - 5 * MINUTE - 3 * SECOND)
    run_of(job, NOON - 9 * MINUTE, "missed")
    with translation.override("de"):
        settings.LANGUAGE_CODE = "de"
        html = section_html(admin_client, name)
    assert EVIL not in html
    assert " style=" not in html
    geometry = re.findall(r' (?:x|y|x1|x2|y1|y2|cx|cy|r|width|height|fill-opacity)="([^"]*)"', html)
    assert len(geometry) > 50
    assert all(re.fullmatch(r"\d+(\.\d+)?%?", value) for value in geometry)


def test_filter_keeps_chosen_values(admin_client: Client) -> None:
    make_job("orders", namespace="shop")
    make_job("report")
    page = admin_client.get(f"{PAGE}?namespace=shop&q=%22ord").content.decode()
    assert "<option selected>shop</option>" in page
    assert 'value="&quot;ord"' in page
    assert page.count("namespace=shop&amp;q=%22ord") == page.count("hx-get=")
    shown = section_html(admin_client, "timeline", "namespace=shop")
    assert "orders" in shown
    assert "report" not in shown
    assert (
        sum(cell.number for day in draw_heat_map(q="REP").days for cell in day.cells if cell) == 7
    )
