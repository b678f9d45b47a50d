"""Targets that the jobs of the tests run, as tasks of Django's own framework."""

from typing import Any

from django.tasks import TaskContext, task

from tests.app import tasks as celery_tasks


@task(queue_name="reports", priority=7)
def report(city: str, days: int = 7) -> dict[str, Any]:
    """Count the orders.

    Not shown.
    """
    return {"city": city, "days": days}


@task
async def fetch(url: str) -> str:
    return f"got {url}"


@task(takes_context=True)
def describe(context: "TaskContext[Any, Any]", name: str) -> dict[str, Any]:
    result = context.task_result
    return {
        "name": name,
        "attempt": context.attempt,
        "id": result.id,
        "kwargs": result.kwargs,
        "status": result.status,
        "workers": result.worker_ids,
    }


@task
def fail() -> None:
    raise RuntimeError("as asked")


def plain() -> None:
    """No task."""


other_name = report
celery_one = celery_tasks.ok
