"""What a target is, in a line or two, for below the field it is typed into."""

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
    TargetKind.FUNCTION: _("function"),
    TargetKind.COMMAND: _("management command"),
    TargetKind.SHELL: _("shell command"),
}


@dataclass(frozen=True, slots=True)
class TargetNote:
    kind: StrOrPromise
    call: str
    """Its name and signature; only the name if the signature is not known."""
    description: str

    @classmethod
    def of(cls, key: str) -> TargetNote | None:
        """None if there is no such target."""
        try:
            target = targets.get(key)
        except UnknownTarget:
            return None
        name = key.rpartition(".")[2]
        return cls(KINDS[target.kind], f"{name}{target.signature}", target.description)
