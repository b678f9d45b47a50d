"""Presets in the add form: ``?preset=NAME`` fills in the fields for a common kind of job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.http import HttpRequest
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy as _

from django_dcron.db import clock
from django_dcron.policies.presets import PRESETS

PARAMETER = "preset"
LABELS = {
    "report": _("Nightly report"),
    "poll": _("Poll every minute"),
    "import": _("Import with retries"),
    "cleanup": _("Cleanup"),
    "once": _("One-off job"),
}


@dataclass(frozen=True)
class PresetLink:
    name: str
    label: str
    is_chosen: bool

    @property
    def query(self) -> str:
        return f"?{PARAMETER}={self.name}"


def list_preset_links(request: HttpRequest) -> list[PresetLink]:
    chosen = request.GET.get(PARAMETER)
    return [PresetLink(name, str(LABELS[name]), name == chosen) for name in PRESETS]


def initial_values(request: HttpRequest) -> dict[str, Any]:
    """Return the values of the chosen preset; empty without a known preset."""
    preset = PRESETS.get(request.GET.get(PARAMETER, ""))
    if preset is None:
        return {}
    return {"schedule": preset.schedule or _tomorrow(), **preset.fields}


def _tomorrow() -> str:
    return f"@at {localtime(clock.now()).date() + timedelta(days=1)}T09:00"
