"""Fixtures: ``pytest_plugins = ["django_dcron.testing.pytest_plugin"]`` in the project's topmost ``conftest.py``.

Django and django-dcron are imported when a test asks for a fixture, not before: settings may come later than this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_dcron.models import Run
    from django_dcron.testing import StandingClock


@pytest.fixture
def dcron_clock() -> Iterator[StandingClock]:
    """The clock of django-dcron, set to the present second until the test sets it to another time: ``dcron_clock.set_to(...)``."""
    from django_dcron.domain.clock import now
    from django_dcron.testing import set_clock

    with set_clock(now().replace(microsecond=0)) as clock:
        yield clock


@pytest.fixture
def dcron_run_due(db: None) -> Callable[..., list[Run]]:
    """``django_dcron.testing.run_due``, with the database of pytest-django, which makes one only for tests that name it."""
    from django_dcron.testing import run_due

    return run_due
