"""Settings of a project whose Celery router blocks until a process opens a pipe for writing."""

import os
from pathlib import Path
from typing import Any

from tests.settings import *  # noqa: F403


def route(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **more: Any) -> None:
    Path(os.environ["DCRON_TEST_PIPE"]).read_bytes()


CELERY_TASK_ROUTES = [route]
