"""Shadow targets: a job with the target ``shadow:KEY`` has runs that don't call the target KEY.

The runs are claimed, dispatched and recorded as usual. Shadows help with a migration: the other
scheduler still does the work, and its runs can be compared with those here.
"""

from __future__ import annotations

from typing import Any

from django_dcron.targets.base import Invocation, Target
from django_dcron.targets.parameters import TargetParameter

PREFIX = "shadow:"
NOT_EXECUTED = "shadow: not executed"
"""The reason of the runs of a shadow that succeeded."""


def is_shadow(target: str) -> bool:
    return target.startswith(PREFIX)


class ShadowTarget(Target):
    """Accepts the arguments of its target, uses the same queue, and does nothing."""

    def __init__(self, target: Target):
        self.key = f"{PREFIX}{target.key}"
        self.kind = target.kind
        self.target = target

    @property
    def description(self) -> str:
        return f"shadow of {self.target.key}, records runs without executing it"

    @property
    def signature(self) -> str:
        return self.target.signature

    @property
    def parameters(self) -> list[TargetParameter] | None:
        return self.target.parameters

    @property
    def route_name(self) -> str | None:
        return self.target.route_name

    @property
    def django_task(self) -> Any:
        return self.target.django_task

    def check_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.target.check_arguments(args, kwargs)

    def call(self, invocation: Invocation) -> None:
        """Do nothing."""
