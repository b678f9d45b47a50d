"""Test that open dashboards share their queries, and that no viewer gets what another may see."""

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from django.conf import settings as django_settings
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.http import HttpRequest
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import clear_url_caches, reverse
from django.utils import translation
from pytest_django import DjangoAssertNumQueries

from django_dcron import admin as dcron_admin
from django_dcron.admin.dashboard import live, page
from django_dcron.admin.dashboard.filter import selection_of
from django_dcron.admin.dashboard.live import RenderedSection, Section, is_due
from django_dcron.admin.dashboard.store import Store, store
from django_dcron.admin.dashboard.viewer import Viewer
from django_dcron.db.now import database_now
from django_dcron.diagnosis import timeline
from django_dcron.diagnosis.scope import EVERYTHING as ALL_ROWS
from django_dcron.models import Job
from tests.admin import narrowed_sites
from tests.admin.conftest import StaffWith, list_url, log_in, make_job
from tests.factories import make_run

MAX_QUERIES_PER_MINUTE = 40
"""For all open dashboards together."""
VIEWERS = 10
MINUTES = 12
POLL_EVERY = 5
ALL_PERMISSIONS = ("view_dashboard", "view_job", "view_run", "view_attempt", "view_node")
URL = "/admin/django_dcron/dashboard/"
EVERYTHING = {f"dcron-{name}": "" for name in page.SECTIONS if name != page.FIRST_STEPS}

pytestmark = pytest.mark.django_db


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000_000.0
        self.step = 0.0
        """Seconds that pass with each look at the clock."""

    def __call__(self) -> float:
        self.seconds += self.step
        return self.seconds


@pytest.fixture
def clock(nothing_is_remembered: None, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(live, "clock", clock)
    return clock


class Tab:
    """An open dashboard that polls like the page's script."""

    def __init__(self, client: Client, query: str = "") -> None:
        self.client = client
        self.parts: dict[str, str] = {}
        html = client.get(URL + query).content.decode()
        found = re.search(r'data-dcron-live hx-get="([^"]+)"', html)
        assert found
        self.url = found[1].replace("&amp;", "&")
        self.html = html
        self._show(html)

    def poll(self) -> Any:
        response = self.ask({f"dcron-{name}": digest for name, digest in self.seen.items()})
        self._show(response.content.decode())
        return response

    def ask(self, seen: dict[str, str]) -> Any:
        joined = "&" if "?" in self.url else "?"
        return self.client.get(f"{self.url}{joined}{urlencode(seen)}")

    def _show(self, html: str) -> None:
        pattern = r'<div id="dcron-(\w+)" data-dcron-part data-dcron-seen="(\w+)"'
        starts = list(re.finditer(pattern, html))
        ends = [*(start.start() for start in starts), len(html)][1:]
        for start, end in zip(starts, ends, strict=True):
            self.parts[start[1]] = html[start.start() : end]

    @property
    def seen(self) -> dict[str, str]:
        found = {}
        for name, html in self.parts.items():
            seen = re.search(r'data-dcron-seen="(\w+)"', html)
            assert seen
            found[name] = seen[1]
        return found


def queries_of(tabs: list[Tab], clock: Clock, job: Job, minutes: int, *, busy: bool) -> list[int]:
    """Return the queries of each minute in which all ``tabs`` poll."""
    found = []
    for _minute in range(minutes):
        with CaptureQueriesContext(connection) as captured:
            number = 0
            for _ in range(60 // POLL_EVERY):
                clock.seconds += POLL_EVERY
                if busy:
                    before = len(captured)
                    make_run(job, "failed", due_at=database_now("default"))
                    number -= len(captured) - before
                for tab in tabs:
                    assert tab.poll().status_code in {200, 204}
            found.append(number + len(captured))
    return found


def test_open_dashboards_of_all_viewers_stay_below_the_maximum(clock: Clock) -> None:
    job = make_job()
    for number in range(timeline.LANES):
        make_run(make_job(f"other {number}"), "succeeded")
    tabs = [Tab(log_in(*ALL_PERMISSIONS)) for _ in range(VIEWERS)]

    minutes = queries_of(tabs, clock, job, MINUTES, busy=True)

    assert max(minutes) <= MAX_QUERIES_PER_MINUTE, minutes
    assert len({tab.parts["failures"] for tab in tabs}) == 1


@pytest.mark.parametrize(
    "tabs",
    [
        [(0, 5), (1.7, 5), (3.4, 5)],
        [(0, 5), (11, 5.3), (23, 6.1)],
        [(0, 15), (4, 5), (9, 7)],
        [(0.5 * number, 5) for number in range(VIEWERS)],
        [(7.3 * number, 5 + number % 3) for number in range(8)],
    ],
    ids=["close", "spread", "idle", "ten close", "eight spread"],
)
def test_interleaved_dashboards_stay_below_the_maximum_in_any_60_seconds(
    clock: Clock, tabs: list[tuple[float, float]]
) -> None:
    """Each tab is opened at an offset and polls at its own interval; reading takes time."""
    job = make_job()
    for number in range(timeline.LANES):
        make_run(make_job(f"other {number}"), "succeeded")
    clock.step = 0.003
    start = clock.seconds
    clients = [log_in(*ALL_PERMISSIONS) for _ in tabs]
    opened: dict[int, Tab] = {}
    reads: list[tuple[float, int]] = []
    failed_at = -float(POLL_EVERY)
    for offset, number in polls_of(tabs, seconds=12 * 60):
        clock.seconds = max(clock.seconds, start + offset)
        if number not in opened:
            opened[number] = Tab(clients[number])
            reads.clear()  # opening a page reads all sections
            continue
        if offset - failed_at >= POLL_EVERY:  # about one between two polls of a tab
            make_run(job, "failed", due_at=database_now("default"))
            failed_at = offset
        with CaptureQueriesContext(connection) as captured:
            assert opened[number].poll().status_code in {200, 204}
        reads.append((offset, len(captured)))

    assert reads[-1][0] - reads[0][0] >= 10 * 60
    for begin, _ in reads:
        within = [(at, count) for at, count in reads if begin <= at < begin + 60 and count]
        assert sum(count for _, count in within) <= MAX_QUERIES_PER_MINUTE, within


def polls_of(tabs: list[tuple[float, float]], seconds: int) -> list[tuple[float, int]]:
    """Return the time and the tab of each poll; a tab has an offset and an interval."""
    return sorted(
        (offset + interval * number, tab)
        for tab, (offset, interval) in enumerate(tabs)
        for number in range(int((seconds - offset) / interval))
    )


def test_quiet_dashboards_need_fewer_queries(clock: Clock) -> None:
    job = make_job()
    tabs = [Tab(log_in(*ALL_PERMISSIONS)) for _ in range(VIEWERS)]

    quiet = queries_of(tabs, clock, job, 1, busy=False)[0]
    assert quiet <= 0.75 * MAX_QUERIES_PER_MINUTE
    assert quiet < queries_of(tabs, clock, job, 1, busy=True)[0]


def test_poll_needs_no_query_while_sections_are_new(
    clock: Clock, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    make_job()
    tabs = [Tab(log_in(*ALL_PERMISSIONS)) for _ in range(2)]

    clock.seconds += POLL_EVERY
    with django_assert_num_queries(0):
        # The second page was read later; the first tab gets what has changed since.
        assert {tab.poll().status_code for tab in tabs} <= {200, 204}
        assert [tab.poll().status_code for tab in tabs] == [204, 204]


def test_change_reaches_all_viewers_through_one_of_them(clock: Clock) -> None:
    job = make_job()
    tabs = [Tab(log_in(*ALL_PERMISSIONS)) for _ in range(3)]
    make_run(job, "failed", due_at=database_now("default"))

    clock.seconds += page.SECTIONS["failures"].min_interval
    for tab in tabs:
        tab.poll()

    assert [job.name in tab.parts["failures"] for tab in tabs] == [True] * 3


def test_viewers_get_only_what_their_permissions_allow(clock: Clock) -> None:
    job = make_job("secret-job")
    rights = [
        ALL_PERMISSIONS,
        ("view_dashboard",),
        ("view_dashboard", "view_node"),
        ("view_dashboard", "view_job"),
    ]
    tabs = [Tab(log_in(*each)) for each in rights]
    make_run(job, "failed", due_at=database_now("default"))
    for _ in range(3):
        clock.seconds += page.SECTIONS["load"].max_interval
        for tab in tabs:
            tab.poll()
            # Naming a section doesn't give it to those who may not see it.
            shown = tab.ask(EVERYTHING).content.decode()
            tab.html = shown

    assert ["secret-job" in tab.html for tab in tabs] == [True, False, False, True]
    parts = [set(re.findall(r'id="dcron-(\w+)"', tab.html)) for tab in tabs]
    assert parts[1] == {"health", "tiles"}
    assert parts[2] == {"health", "tiles", "cluster"}
    assert parts[3] == {"health", "tiles", "timeline", "load"}
    assert list_url("run") not in tabs[3].html


class OwnJobAdmin(dcron_admin.JobAdmin):
    """Shows each user the jobs of the namespace with the user's name, and superusers all jobs."""

    def get_queryset(self, request: Any) -> Any:
        jobs = super().get_queryset(request)
        user = request.user
        return jobs if user.is_superuser else jobs.filter(namespace=user.username)


@pytest.fixture
def own_jobs(settings: Any) -> Iterator[None]:
    site = admin.AdminSite("own")
    for model, usual in narrowed_sites.ADMIN_CLASSES.items():
        site.register(model, OwnJobAdmin if model is Job else usual)
    settings.ROOT_URLCONF = narrowed_sites.Urls(site)
    clear_url_caches()
    yield
    clear_url_caches()


def test_narrowed_viewers_get_only_their_rows(clock: Clock, own_jobs: None) -> None:
    tabs = {}
    for name in ("ann", "bob", "root"):
        user = User.objects.create_user(name, is_staff=True, is_superuser=name == "root")
        user.user_permissions.set(Permission.objects.filter(codename__in=ALL_PERMISSIONS))
        make_run(make_job(f"job-of-{name}", namespace=name), "running")
        client = Client()
        client.force_login(user)
        tabs[name] = client
    opened = {name: Tab(client) for name, client in tabs.items()}
    for name in opened:
        job = Job.objects.get(namespace=name)
        make_run(job, "failed", due_at=database_now("default"))

    for _ in range(30):
        clock.seconds += POLL_EVERY
        for tab in opened.values():
            assert tab.poll().status_code in {200, 204}

    def shown(tab: Tab) -> set[str]:
        return {*re.findall(r"job-of-\w+", "".join(tab.parts.values()))}

    assert shown(opened["ann"]) == {"job-of-ann"}
    assert shown(opened["bob"]) == {"job-of-bob"}
    assert shown(opened["root"]) == {"job-of-ann", "job-of-bob", "job-of-root"}
    for name, tab in opened.items():
        assert f"job-of-{name}" in tab.parts["failures"]


def test_session_that_ends_gets_nothing_more(clock: Clock) -> None:
    make_job("secret-job")
    tab = Tab(log_in(*ALL_PERMISSIONS))
    session = tab.client.cookies[django_settings.SESSION_COOKIE_NAME].value
    tab.client.post("/admin/logout/")

    assert "/login/" in tab.poll()["Location"]
    other = Client()
    assert "/login/" in other.get(tab.url, {"dcron-tiles": ""})["Location"]
    other.cookies[django_settings.SESSION_COOKIE_NAME] = session
    assert "/login/" in other.get(tab.url, {"dcron-tiles": ""})["Location"]
    other.cookies[django_settings.SESSION_COOKIE_NAME] = session + "x"
    assert "/login/" in other.get(tab.url, {"dcron-tiles": ""})["Location"]


def viewer_of(request: HttpRequest) -> Viewer:
    return Viewer(
        site=admin.site,
        sees=frozenset(),
        adds_jobs=False,
        narrowed="",
        chosen=selection_of(request),
        scope=ALL_ROWS,
    )


@pytest.mark.parametrize("header", ["host", "x-forwarded-host"])
def test_permissions_on_one_host_name_do_not_apply_to_another(
    clock: Clock, rf: RequestFactory, settings: Any, header: str
) -> None:
    settings.USE_X_FORWARDED_HOST = header == "x-forwarded-host"

    def request_to(host: str) -> HttpRequest:
        request = rf.get(URL, headers={header: host})
        request.session = SimpleNamespace(session_key="abc")  # type: ignore[assignment]
        return request

    live.remember_viewer(viewer_of(rf.get(URL)), request_to("a.example"))
    assert live.remembered_viewer(request_to("a.example"), admin.site)
    assert live.remembered_viewer(request_to("b.example"), admin.site) is None


def test_logout_on_one_host_name_ends_access_on_all_others(clock: Clock) -> None:
    make_job("secret-job")
    tab = Tab(log_in(*ALL_PERMISSIONS))
    session = tab.client.cookies[django_settings.SESSION_COOKIE_NAME].value
    tab.client.post("/admin/logout/", headers={"host": "other.example"})

    copy = Client()
    copy.cookies[django_settings.SESSION_COOKIE_NAME] = session
    assert "/login/" in copy.get(tab.url, {"dcron-tiles": ""})["Location"]


def test_request_in_progress_during_the_logout_remembers_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job()
    checked: list[Any] = []
    remember = live.remember_viewer
    monkeypatch.setattr(live, "remember_viewer", lambda *given: checked.append(given))
    tab = Tab(log_in(*ALL_PERMISSIONS))
    session = tab.client.cookies[django_settings.SESSION_COOKIE_NAME].value
    tab.client.post("/admin/logout/")
    remember(*checked[-1])

    copy = Client()
    copy.cookies[django_settings.SESSION_COOKIE_NAME] = session
    assert "/login/" in copy.get(tab.url, {"dcron-tiles": ""})["Location"]


def test_withdrawn_permission_is_noticed_in_time(clock: Clock) -> None:
    make_job("secret-job")
    tab = Tab(log_in(*ALL_PERMISSIONS))
    User.objects.get().user_permissions.clear()

    clock.seconds += live.RECHECK_AFTER.stop
    assert tab.poll().status_code == 403


def test_filter_is_not_shared_with_other_filters(clock: Clock) -> None:
    for name in ("grind", "roast"):
        make_job(name)
    client = log_in(*ALL_PERMISSIONS)
    tabs = [Tab(client, query) for query in ("?q=grind", "?q=roast", "")]
    clock.seconds += page.SECTIONS["timeline"].max_interval
    for tab in tabs:
        tab.poll()

    shown = [[name in tab.parts["timeline"] for name in ("grind", "roast")] for tab in tabs]
    assert shown == [[True, False], [False, True], [True, True]]


def test_language_is_not_shared_with_other_languages(clock: Clock, staff_with: StaffWith) -> None:
    make_job()
    client = staff_with(*ALL_PERMISSIONS)
    live_url = reverse("admin:django_dcron_dashboard_live")

    def texts(language: str) -> str:
        with translation.override(language):
            text: str = client.get(live_url, EVERYTHING).content.decode()
            return text

    english, german = texts("en"), texts("de")
    assert english != german
    assert (texts("en"), texts("de")) == (english, german)


def test_one_request_reads_while_others_show_the_previous_content(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    make_job()
    tab = Tab(log_in(*ALL_PERMISSIONS))
    clock.seconds += page.SECTIONS["health"].max_interval
    monkeypatch.setattr(Store, "add", lambda self, key, seconds: False)  # another one reads

    with django_assert_num_queries(0):
        assert tab.poll().status_code == 204


def test_slow_request_does_not_release_the_lock_of_another(
    nothing_is_remembered: None, rf: RequestFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = viewer_of(rf.get(URL))
    lock = viewer.key("reading", is_filtered=True)

    def read_slowly(viewer: Viewer) -> dict[str, Any]:
        assert store.add(lock, 60), "another request takes the expired lock"
        return {}

    monkeypatch.setattr(live, "LOCK_SECONDS", 0)
    monkeypatch.setattr(live, "render_to_string", lambda *given: "")
    live.refreshed_sections(viewer, {"tiles": Section(read_slowly, 10, 20)})
    assert not store.add(lock, 60)


def test_dashboard_works_without_cache(
    clock: Clock, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "store", Store())
    settings.DCRON_CACHE = "missing"
    job = make_job()
    tabs = [Tab(log_in(*ALL_PERMISSIONS)) for _ in range(2)]
    make_run(job, "failed", due_at=database_now("default"))

    clock.seconds += page.SECTIONS["failures"].min_interval
    for tab in tabs:
        assert tab.poll().status_code == 200
        assert job.name in tab.parts["failures"]


@pytest.mark.parametrize(
    ("last_due", "due"), [(-500, 90), (0, 90), (61, 91), (200, 230), (359, 360)]
)
def test_viewers_are_checked_one_after_another(last_due: float, due: float) -> None:
    now = 1_000_000.0
    assert live.recheck_due(now, now + last_due) == now + due


@pytest.mark.parametrize(
    ("age", "since_last_check", "is_due"),
    [(89, 89, False), (90, 90, True), (90, 29, False), (120, 30, True), (360, 0, True)],
)
def test_check_of_a_viewer_waits_for_its_turn(
    age: int, since_last_check: int, is_due: bool
) -> None:
    now = 1_000_000.0
    checked_at = now - age
    found = live.is_recheck_due(now, checked_at, checked_at + 90, now - since_last_check)
    assert found is is_due


SECTION = Section(lambda viewer: {}, min_interval=40, max_interval=120)


@pytest.mark.parametrize(
    ("age", "news_age", "is_read"),
    [
        (39, 10, False),
        (40, 10, True),
        (40, 41, False),
        (119, 119, False),
        (120, 200, True),
        (-3, 10, False),
        (-live.MAX_CLOCK_SKEW - 1, 10, True),
    ],
)
def test_section_is_read_after_news_or_at_the_latest(
    age: float, news_age: float, is_read: bool
) -> None:
    now = 1000.0
    shown = RenderedSection("", "d", now - age, now - age)  # type: ignore[arg-type]
    news = RenderedSection("", "d", now, now - news_age)  # type: ignore[arg-type]

    assert is_due(SECTION, shown, news, now) == is_read
    assert is_due(SECTION, None, news, now)
