"""What a target is: a thing the project registered, looked up by key, whose arguments can be checked before it is called.

Looking up a target never imports or runs what the key says; it only finds what is registered already.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from django_dcron.phrases import Phrase, alternatives


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
    """Names the call; a Celery task sees it as ``self.request.id``."""
    attempt: int = 1
    """From 1; a Celery task sees one less as ``self.request.retries``."""
    worker: str = ""
    max_attempts: int | None = None
    """How many attempts the run has; None if unknown. Tells a Celery task's ``on_retry`` from its ``on_failure``."""

    @property
    def is_last(self) -> bool:
        return self.max_attempts is not None and self.attempt >= self.max_attempts


class Target(ABC):
    """Something a job may run."""

    key: str
    kind: TargetKind

    @property
    @abstractmethod
    def description(self) -> str:
        """One line for people; empty if there is none."""

    @property
    def signature(self) -> str:
        """What it takes, as code would say it: (city: str, days=7). Empty if that is not known."""
        return ""

    @property
    def route_name(self) -> str | None:
        """The Celery task name whose route the job's queue follows; None if it has no route of its own."""
        return None

    @property
    def django_task(self) -> Any:
        """The Django task whose queue and priority count where the job names none; None if it is not one."""
        return None

    @abstractmethod
    def check_arguments(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Raise ``InvalidArguments``, naming the parameter, if the target does not take these arguments."""

    @abstractmethod
    def call(self, invocation: Invocation) -> Any:
        """Run it and return what it returns; whatever it raises passes through."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key}>"


def first_line(text: str | None) -> str:
    """The first line of a docstring or help text."""
    lines = inspect.cleandoc(text or "").splitlines()
    return lines[0].strip() if lines else ""


def nearest(word: str, known: Sequence[str], likeness: float = 0.6) -> Phrase | str:
    """``"a, b or c"``: up to three that come near; empty if nothing does."""
    near = get_close_matches(word, known, n=3, cutoff=likeness)
    return alternatives(near) if near else ""


def did_you_mean(word: str, known: Sequence[str], likeness: float = 0.6) -> str:
    """``"; did you mean a, b or c?"``, or nothing if nothing comes near."""
    near = nearest(word, known, likeness)
    return f"; did you mean {near}?" if near else ""
