"""Middleware that inserts a row whenever a job's code starts."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shop.models import Execution

if TYPE_CHECKING:
    from django_dcron.execution.current import CurrentRun


def witness(call_next: "Callable[[CurrentRun], Any]") -> "Callable[[CurrentRun], Any]":
    def witnessed(run: "CurrentRun") -> Any:
        Execution.objects.create(run_id=run.id, attempt=run.attempt, process=os.getpid())
        return call_next(run)

    return witnessed
