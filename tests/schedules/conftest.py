"""Run the schedule tests in an unusual local time zone, which must not affect any result."""

import os
import time
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def unusual_local_time_zone() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Kathmandu"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()
