"""Pytest fixtures for projects.

To load them, add ``pytest_plugins = ["django_dcron.testing.pytest_plugin"]`` to the topmost
``conftest.py``. Fixtures import Django and django-dcron only when a test requests them, because
this module may be imported before settings are configured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_dcron.models import Run
    from django_dcron.testing import ManualClock


@pytest.fixture
def dcron_clock() -> Iterator[ManualClock]:
    """The clock of django-dcron, set to the current second.

    ``dcron_clock.set_to(...)`` changes it.
    """
    from django_dcron.db.clock import now
    from django_dcron.testing import set_clock

    with set_clock(now().replace(microsecond=0)) as clock:
        yield clock


@pytest.fixture
def dcron_run_due(db: None) -> Callable[..., list[Run]]:
    """``django_dcron.testing.run_due`` with access to pytest-django's database."""
    from django_dcron.testing import run_due

    return run_due
