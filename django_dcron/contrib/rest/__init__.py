"""The REST API. It requires ``pip install django-dcron[api]``.

Mount it with ``path("dcron/", include("django_dcron.contrib.rest.urls"))``. A request passes
``urls``, ``viewsets`` (with ``permissions``, ``parsing`` and ``problems``), and then the module of
the endpoint, such as ``jobs``, ``runs`` or ``calendars``.
"""

from __future__ import annotations

from importlib.util import find_spec

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

_missing = [name for name in ("rest_framework", "drf_spectacular") if find_spec(name) is None]
if _missing:
    raise ImproperlyConfigured(
        f"django_dcron.contrib.rest needs {' and '.join(_missing)}: pip install django-dcron[api]"
    )
if not apps.is_installed("rest_framework"):
    raise ImproperlyConfigured(
        'django_dcron.contrib.rest needs "rest_framework" in INSTALLED_APPS.'
    )
