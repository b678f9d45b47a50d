"""Call Celery tasks as targets, without a worker."""

from typing import Any

from django_dcron import targets
from django_dcron.targets import Invocation


class Down(Exception):
    pass


def call(
    task: Any, *args: Any, attempt: int = 1, max_attempts: int | None = None, **kwargs: Any
) -> Any:
    invocation = Invocation(list(args), kwargs, "call-1", attempt, "w1@host", max_attempts)
    return targets.get(task.name).call(invocation)
