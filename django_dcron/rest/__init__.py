"""The REST API, mounted by ``path("dcron/", include("django_dcron.rest.urls"))``. It needs ``pip install django-dcron[api]``.

Reading order is call order: ``urls -> view (permissions, parsing, problems) -> jobs, calendars, runs, nodes, stats``.
"""

from __future__ import annotations

from importlib.util import find_spec

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

_missing = [name for name in ("rest_framework", "drf_spectacular") if find_spec(name) is None]
if _missing:
    raise ImproperlyConfigured(
        f"django_dcron.rest needs {' and '.join(_missing)}: pip install django-dcron[api]"
    )
if not apps.is_installed("rest_framework"):
    raise ImproperlyConfigured('django_dcron.rest needs "rest_framework" in INSTALLED_APPS.')
