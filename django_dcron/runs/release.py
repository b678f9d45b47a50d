"""The release of the project's code, which attempts record.

Invariant: the commit is read once per process, when Django starts, unless ``DCRON_RELEASE`` names
the release. So a later change of the checkout doesn't count as the release of code that was loaded
before it.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from django.conf import settings as django_settings

from django_dcron.conf import settings
from django_dcron.models.attempt import LONGEST_RELEASE
from django_dcron.utils.git_commit import checked_out_commit


def current_release() -> str:
    """Return ``DCRON_RELEASE``; by default, the commit of the checkout that has the settings."""
    release = settings.RELEASE
    return commit_of_project() if release is None else str(release)[:LONGEST_RELEASE]


@cache
def commit_of_project() -> str:
    """Return the commit that was checked out at the first call; empty without a checkout."""
    module = sys.modules.get(getattr(django_settings, "SETTINGS_MODULE", ""))
    file = getattr(module, "__file__", None)
    return checked_out_commit(Path(file).resolve().parent) if file else ""
