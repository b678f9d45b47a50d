"""django-dcron: jobs as rows; each occurrence runs once, on any number of machines.

The public names of the package. They are imported at first use, so importing the package doesn't
need configured Django settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from django_dcron.exceptions import PermanentFailure, RetryLater, RunCancelled
    from django_dcron.execution.current import current_run
    from django_dcron.targets import cron
    from django_dcron.targets.declared_fields import JobFields, JobValues

__all__ = [
    "JobFields",
    "JobValues",
    "PermanentFailure",
    "RetryLater",
    "RunCancelled",
    "cron",
    "current_run",
]

_MODULE_OF = {
    "JobFields": "django_dcron.targets.declared_fields",
    "JobValues": "django_dcron.targets.declared_fields",
    "PermanentFailure": "django_dcron.exceptions",
    "RetryLater": "django_dcron.exceptions",
    "RunCancelled": "django_dcron.exceptions",
    "cron": "django_dcron.targets",
    "current_run": "django_dcron.execution.current",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
