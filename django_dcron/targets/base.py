"""The interface of a target: registered by the project, found by key, with arguments to check.

Looking up a target never imports or runs the text of the key. It only finds what is registered.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django_dcron.targets.parameters import TargetParameter


class TargetKind(StrEnum):
    TASK = "task"
    DJANGO_TASK = "django_task"
    FUNCTION = "function"
    COMMAND = "command"
    SHELL = "shell"


@dataclass(frozen=True, slots=True)
class Invocation:
    """One attempt's call of a target."""

    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    call_id: str = ""
    """Identifies the call. A Celery task reads it as ``self.request.id``."""
    attempt: int = 1
    """Counted from 1. A Celery task reads ``self.request.retries``, which is one less."""
    worker: str = ""
    max_attempts: int | None = None
    """Attempts of the run; None if unknown. Decides between a Celery task's ``on_retry`` and
    ``on_failure``.
    """

    @property
    def is_last(self) -> bool:
        return self.max_attempts is not None and self.attempt >= self.max_attempts


class Target(ABC):
    """A target that jobs may run."""

    key: str
    kind: TargetKind

    @property
    @abstractmethod
    def description(self) -> str:
        """One line for people; empty if unknown."""

    @property
    def signature(self) -> str:
        """The parameters as in code, such as ``(city: str, days=7)``. Empty if unknown."""
        return ""

    @property
    def parameters(self) -> list[TargetParameter] | None:
        """The parameters that a form offers as inputs; None if it can't offer all of them."""
        return None

    @property
    def route_name(self) -> str | None:
        """The Celery task whose route the job's queue follows, or None without a route."""
        return None

    @property
    def django_task(self) -> Any:
        """The Django task whose queue and priority apply if the job has none; None for others."""
        return None

    @property
    def is_async(self) -> bool:
        """Whether the target is a coroutine function."""
        return False

    @abstractmethod
    def check_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Raise ``InvalidArguments``, which names the parameter, if the arguments don't fit."""

    @abstractmethod
    def call(self, invocation: Invocation) -> Any:
        """Run the target and return its result, or return its coroutine. Exceptions aren't
        caught.
        """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key}>"


def first_line(text: str | None) -> str:
    """Return the first line of a docstring or help text."""
    lines = inspect.cleandoc(text or "").splitlines()
    return lines[0].strip() if lines else ""
