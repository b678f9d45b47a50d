"""A dispatcher to the broker of the module's Celery app."""

from collections.abc import Iterator

import pytest
from celery import Celery

from django_dcron.dispatch.base import DueRun
from django_dcron.dispatch.celery import CeleryDispatcher


@pytest.fixture
def dispatcher(app: Celery) -> Iterator[CeleryDispatcher]:
    dispatcher = CeleryDispatcher(app)
    yield dispatcher
    dispatcher.close()


def publish_runs(dispatcher: CeleryDispatcher, *runs: DueRun) -> None:
    dispatcher.publish([dispatcher.prepare(run) for run in runs])
