"""Find the theme of the admin. Some themes need other markup than Django's own admin."""

from __future__ import annotations

from django.apps import apps

UNFOLD, JAZZMIN = "unfold", "jazzmin"


def theme() -> str:
    """Return the name of the installed theme, or an empty string for Django's own admin."""
    return next((name for name in (UNFOLD, JAZZMIN) if apps.is_installed(name)), "")
