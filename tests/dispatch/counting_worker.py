"""A Celery worker with a task that takes the place of django-dcron's and only counts executions."""

from functools import cache
from typing import Any

from celery import Celery

from django_dcron.dispatch.messages import TASK
from tests.settings import CELERY_BROKER_URL

app = Celery("counting", broker=CELERY_BROKER_URL, fixups=[])
app.conf.broker_connection_retry_on_startup = True


@app.task(name=TASK, bind=True)
def count_execution(self, run_id: str, attempt: int) -> None:  # type: ignore[no-untyped-def]
    redis_client().rpush("executed", self.request.id)


@cache
def redis_client() -> Any:
    return app.connection_for_write().default_channel.client
