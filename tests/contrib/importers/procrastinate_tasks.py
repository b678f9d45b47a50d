"""Periodic tasks of a project that uses its own procrastinate app."""

from typing import Any

import procrastinate
from celery import shared_task
from procrastinate.builtin_tasks import remove_old_jobs
from procrastinate.testing import InMemoryConnector

app = procrastinate.App(connector=InMemoryConnector())
blueprint = procrastinate.Blueprint()


class OwnStrategy(procrastinate.BaseRetryStrategy):
    pass


@app.periodic(
    cron="*/20 8-17 * * 1-5",
    periodic_id="north",
    task_kwargs={"region": "north"},
    lock="sales",
    priority=7,
)
@app.periodic(cron="0 3 1 * mon", periodic_id="south", queue="slow", queueing_lock="one")
@app.task(name="report", retry=3)
@shared_task
def report(timestamp: int = 0, region: str = "south") -> None:
    pass


@app.periodic(cron="0 * * * *")
@app.task
@shared_task
def needs_its_timestamp(timestamp: int) -> None:
    pass


@app.periodic(cron="0 * * * *")
@app.task(pass_context=True)
@shared_task
def needs_its_context(context: Any, timestamp: int = 0) -> None:
    pass


@app.periodic(cron="0 * * * *", schedule_in={"minutes": 5})
@app.task
@shared_task
def delayed(timestamp: int = 0) -> None:
    pass


@app.periodic(cron="R 3 * * *")
@app.task(retry=OwnStrategy())
@shared_task
def at_random(**kwargs: Any) -> None:
    pass


@blueprint.periodic(cron="5 4 * * *")
@blueprint.task(retry=OwnStrategy())
@shared_task
def of_a_blueprint(**kwargs: Any) -> None:
    pass


app.add_tasks_from(blueprint, namespace="shop")
app.periodic(cron="0 4 * * *")(remove_old_jobs)
