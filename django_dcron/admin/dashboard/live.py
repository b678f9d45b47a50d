"""Keep an open dashboard up to date at a bounded cost, however many tabs are open.

Each tab sends a small request every few seconds, with a digest of each section that it shows. The
response contains the sections that have changed. Viewers with the same permissions and settings
share the sections through the project's cache.

Invariants:

- A section is read at most once per ``min_interval`` for all viewers with the same key. The figures
  tell whether anything is new. If not, most sections are read once per ``max_interval``.
- One request at a time reads the sections of a key. The others answer with the previous content.
- Sections that a request reads together have the same ``read_at``, so they stay due together.
- A request that finds everything in the cache needs no query, not even for session and user. It
  must have the session of a request that passed all checks within ``RECHECK_AFTER`` seconds. A
  logout ends this at once on all sites and host names, in all processes that share the cache.
- A section of narrowed rows is read only for a request whose user is known.
- A section is rendered without the request, so that no viewer gets data of another viewer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from django.contrib import admin
from django.contrib.auth.signals import user_logged_out
from django.db.models import Model
from django.dispatch import receiver
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.crypto import salted_hmac
from django.utils.safestring import SafeString

from django_dcron.admin.dashboard.filter import selection_of
from django_dcron.admin.dashboard.store import store
from django_dcron.admin.dashboard.viewer import Viewer
from django_dcron.diagnosis.scope import EVERYTHING, Scope

FIGURES = "tiles"
"""The section whose changes tell that other sections may have changed."""
CACHE_SECONDS = 600
"""Seconds for which the cache keeps a section that nobody asks for."""
LOCK_SECONDS = 15
"""Seconds after which another request reads the sections, because the first one has failed."""
RECHECK_AFTER = range(90, 360)
"""Minimum and maximum age, in seconds, at which a viewer's permissions are checked again."""
CHECK_SPACING = 30
"""Seconds between the checks of two viewers. A check at the maximum age doesn't wait."""
MAX_CLOCK_SKEW = 5
"""Seconds by which the clocks of two web servers may differ."""


def clock() -> float:
    """Return the time in seconds, comparable between processes; tests replace it."""
    return time.time()


@dataclass(frozen=True, slots=True)
class Section:
    context: Callable[[Viewer], dict[str, Any]]
    min_interval: int
    """The minimum number of seconds between two readings."""
    max_interval: int
    """The number of seconds after which the section is read, even if nothing seems new."""
    shows: tuple[type[Model], ...] = ()
    """Only users who may view all of these models get the section."""
    is_filtered: bool = False
    """Whether the section shows only the jobs that the filter selects."""


@dataclass(frozen=True, slots=True)
class RenderedSection:
    """A section as it was read last."""

    html: SafeString
    digest: str
    read_at: float
    """When the request began to read sections."""
    changed_at: float


def is_due(
    section: Section, shown: RenderedSection | None, figures: RenderedSection | None, now: float
) -> bool:
    """Return whether a section must be read again.

    A change of ``figures``, the section ``FIGURES``, means that other sections may have changed.
    """
    if shown is None:
        return True
    age = now - shown.read_at
    if age < -MAX_CLOCK_SKEW or age >= section.max_interval:
        return True
    if figures is None or figures.changed_at <= shown.read_at:
        return False
    # This compares with the figures, so that the section is read in the same request as they are
    # and needs no second query for the database's time.
    return figures.read_at - shown.read_at >= section.min_interval


def read_sections(viewer: Viewer, sections: Mapping[str, Section]) -> dict[str, RenderedSection]:
    """Read the sections for a viewer who opens the page, and share them."""
    keys = _keys(viewer, sections)
    stored = store.get_many(keys.values())
    now = clock()
    found = {
        name: _render_section(name, section, viewer, now, stored.get(keys[name]))
        for name, section in sections.items()
    }
    store.set_many({keys[name]: shown for name, shown in found.items()}, CACHE_SECONDS)
    return found


def refreshed_sections(
    viewer: Viewer, sections: Mapping[str, Section]
) -> dict[str, RenderedSection] | None:
    """Read the sections that are due again, and return all shared sections.

    None means that a section must be read, and that the viewer's user isn't known.
    """
    keys = _keys(viewer, sections)
    stored = store.get_many(keys.values())
    found = {name: stored[key] for name, key in keys.items() if key in stored}
    if not _is_any_due(sections, found):
        return found
    if viewer.scope is UNKNOWN_ROWS:
        return None
    reading, locked_at = viewer.key("reading", is_filtered=True), time.monotonic()
    if not store.add(reading, LOCK_SECONDS):
        return found
    try:
        now = clock()
        read: dict[str, RenderedSection] = {}
        for name, section in sections.items():
            before = found.get(name)
            if is_due(section, before, found.get(FIGURES), now):
                read[name] = found[name] = _render_section(name, section, viewer, now, before)
        store.set_many({keys[name]: shown for name, shown in read.items()}, CACHE_SECONDS)
    finally:
        if time.monotonic() - locked_at < LOCK_SECONDS:  # else another request may have the lock
            store.delete(reading)
    return found


def _is_any_due(sections: Mapping[str, Section], found: Mapping[str, RenderedSection]) -> bool:
    now = clock()
    return any(
        is_due(section, found.get(name), found.get(FIGURES), now)
        for name, section in sections.items()
    )


def _keys(viewer: Viewer, sections: Mapping[str, Section]) -> dict[str, str]:
    return {
        name: viewer.key(name, is_filtered=section.is_filtered)
        for name, section in sections.items()
    }


def _render_section(
    name: str, section: Section, viewer: Viewer, now: float, before: RenderedSection | None
) -> RenderedSection:
    html = render_to_string(f"admin/django_dcron/dashboard/{name}.html", section.context(viewer))
    digest = blake2b(html.encode(), digest_size=8).hexdigest()
    is_same = before is not None and before.digest == digest
    return RenderedSection(html, digest, now, before.changed_at if before and is_same else now)


# --- viewers whose permissions are known ----------------------------------------------------------


def _refuse(model: type[Model]) -> None:
    raise RuntimeError(f"The visible rows of {model.__name__} are unknown without the user.")


UNKNOWN_ROWS = Scope(_refuse)
"""The scope of a remembered viewer whose rows are narrowed."""


def remember_viewer(viewer: Viewer, request: HttpRequest) -> None:
    """Remember what the viewer may see, for later requests of the same session."""
    key = _viewer_key(request, viewer.site)
    # A request in progress during the logout must not restore access.
    if key and store.get(_logout_key(request)) is None:
        now = clock()
        turn = _last_check_key(viewer.site)
        _last_check, last_due = store.get(turn) or (0.0, 0.0)
        due = recheck_due(now, last_due)
        facts = (sorted(viewer.sees), viewer.adds_jobs, viewer.narrowed, now, due)
        store.set_many({key: facts, turn: (now, due)}, RECHECK_AFTER.stop)


def recheck_due(now: float, last_due: float) -> float:
    """Return when to check the permissions of a viewer again who has passed the checks ``now``.

    ``last_due`` is the latest such time of another viewer.
    """
    earliest, latest = now + RECHECK_AFTER.start, now + RECHECK_AFTER.stop
    return min(max(earliest, last_due + CHECK_SPACING), latest)


def is_recheck_due(now: float, checked_at: float, due: float, last_check: float) -> bool:
    """Return whether to check permissions now, which were checked at ``checked_at``.

    A check that is due waits while the latest check of any viewer, ``last_check``, is too recent.
    """
    age = now - checked_at
    if age < -MAX_CLOCK_SKEW or age >= RECHECK_AFTER.stop:
        return True
    return now >= due and now - last_check >= CHECK_SPACING


def remembered_viewer(request: HttpRequest, site: admin.AdminSite) -> Viewer | None:
    """Return the viewer of an earlier request of this session; this needs no query."""
    key, logout = _viewer_key(request, site), _logout_key(request)
    turn = _last_check_key(site)
    stored = store.get_many([key, turn, logout]) if key else {}
    facts = stored.get(key)
    if facts is None or logout in stored:
        return None
    sees, adds_jobs, narrowed, checked_at, due = facts
    last_check, _last_due = stored.get(turn) or (0.0, 0.0)
    if is_recheck_due(clock(), checked_at, due, last_check):
        return None
    return Viewer(
        site=site,
        sees=frozenset(sees),
        adds_jobs=adds_jobs,
        narrowed=narrowed,
        chosen=selection_of(request),
        scope=UNKNOWN_ROWS if narrowed else EVERYTHING,
    )


@receiver(user_logged_out)
def forget_viewer(request: HttpRequest, **_given: Any) -> None:
    """Mark the session as ended, so that a copied session cookie gives no access.

    The mark applies to all sites and host names. It outlives all that was stored before.
    """
    if key := _logout_key(request):
        store.set_many({key: True}, RECHECK_AFTER.stop)


def _last_check_key(site: admin.AdminSite) -> str:
    return f"turn:{site.name}"


def _viewer_key(request: HttpRequest, site: admin.AdminSite) -> str:
    """Return a key that only this session has on this site and host; empty without a session."""
    return _session_key(request, f"{site.name}\n{request.get_host()}")


def _logout_key(request: HttpRequest) -> str:
    return _session_key(request, "logout")


def _session_key(request: HttpRequest, purpose: str) -> str:
    session = getattr(getattr(request, "session", None), "session_key", None)
    if not session:
        return ""
    parts = f"{purpose}\n{session}"
    return salted_hmac("django_dcron.dashboard", parts, algorithm="sha256").hexdigest()


def seen_digests(request: HttpRequest, sections: Iterable[str]) -> dict[str, str]:
    """Return the digest of each section that the tab shows, by the section's name."""
    given = {name: request.GET.get(f"dcron-{name}") for name in sections}
    return {name: digest for name, digest in given.items() if digest is not None}
