"""Describe a target in one or two lines below its form field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.utils.translation import gettext_lazy as _

from django_dcron import targets
from django_dcron.exceptions import UnknownTarget
from django_dcron.targets import TargetKind

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

KINDS: dict[TargetKind, StrOrPromise] = {
    TargetKind.TASK: _("Celery task"),
    TargetKind.DJANGO_TASK: _("Django task"),
    TargetKind.FUNCTION: _("Function"),
    TargetKind.COMMAND: _("Management command"),
    TargetKind.SHELL: _("Shell command"),
}


@dataclass(frozen=True, slots=True)
class TargetNote:
    kind: StrOrPromise
    call: str
    """The target's name with its signature, or the name only if the signature is unknown."""
    description: str

    @classmethod
    def of(cls, key: str) -> TargetNote | None:
        """Return None if no target has this key."""
        try:
            target = targets.get(key)
        except UnknownTarget:
            return None
        name = key.rpartition(".")[2]
        return cls(KINDS[target.kind], f"{name}{target.signature}", target.description)
