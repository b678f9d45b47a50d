"""Periodic tasks of a project that uses its own Huey instance."""

from typing import Any

from celery import shared_task
from huey import CancelExecution, MemoryHuey, RetryTask, crontab

huey = MemoryHuey("tests", immediate=False)
local = MemoryHuey("local", utc=False, immediate=False)


@huey.periodic_task(
    crontab(minute="*/20", hour="8-17", day_of_week="1-5"),
    retries=4,
    retry_delay=10,
    retry_backoff=3,
    priority=50,
    expires=90,
    timeout=60,
    name="nightly",
    team="sales",
)
@shared_task
def report() -> None:
    pass


@huey.periodic_task(crontab(minute="0", day="13", day_of_week="5"))
@shared_task
def friday_13th() -> None:
    pass


@huey.periodic_task(lambda at: at.minute % 7 == 0)
@shared_task
def own_rule() -> None:
    pass


@huey.periodic_task(crontab(minute="0"), context=True)
@shared_task
def needs_its_task(task: Any) -> None:
    pass


@huey.periodic_task(crontab(minute="0"), context=True, retries=2, retry_delay=5)
@shared_task
def may_have_its_task(task: Any = None) -> None:
    raise RetryTask(delay=5) if task else CancelExecution


@huey.periodic_task(crontab(minute="1"))
def plain() -> None:
    pass


@local.periodic_task(crontab(minute="30", hour="2"))
@shared_task
def at_night() -> None:
    pass
