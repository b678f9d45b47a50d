"""Helpers for the tests of projects: a clock to set, ``run_due`` and ``assert_runs_at``.

The names are imported on first use, so importing this package needs neither a configured Django nor
pytest. No other module of django-dcron imports it. The fixtures are in
``django_dcron.testing.pytest_plugin``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_dcron.testing.manual_clock import ManualClock, set_clock
    from django_dcron.testing.stepping import run_due
    from django_dcron.testing.timing import assert_runs_at

__all__ = ["ManualClock", "assert_runs_at", "run_due", "set_clock"]

_MODULE_OF = {
    "ManualClock": "django_dcron.testing.manual_clock",
    "assert_runs_at": "django_dcron.testing.timing",
    "run_due": "django_dcron.testing.stepping",
    "set_clock": "django_dcron.testing.manual_clock",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULE_OF[name]), name)
