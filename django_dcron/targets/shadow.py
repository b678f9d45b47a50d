"""Shadows: ``shadow:KEY`` is the target KEY whose runs are claimed, handed over and recorded like any other, and whose code is not called.

For moving in: another scheduler still does the work, and what would be done here can be compared with it.
"""

from __future__ import annotations

from typing import Any

from django_dcron.targets.base import Invocation, Target

PREFIX = "shadow:"


class ShadowTarget(Target):
    """Takes what its target takes, goes where it goes, and does nothing."""

    def __init__(self, target: Target):
        self.key = f"{PREFIX}{target.key}"
        self.kind = target.kind
        self.target = target

    @property
    def description(self) -> str:
        return f"is not executed: the shadow of {self.target.key}"

    @property
    def signature(self) -> str:
        return self.target.signature

    @property
    def route_name(self) -> str | None:
        return self.target.route_name

    @property
    def django_task(self) -> Any:
        return self.target.django_task

    def check_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.target.check_arguments(args, kwargs)

    def call(self, invocation: Invocation) -> None:
        """Nothing."""
