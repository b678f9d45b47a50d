"""Inject faults into a process of a test at its sync points, as DCRON_TEST_FAULTS specifies.

    {"at": "publish.done", "times": 3, "signal": "SIGKILL"}    send the signal the third time
    {"at": ["mark.begun", "mark.done"], "chance": 0.05, ...}   each time at any of these points,
    with this probability

A signal goes to this process alone: a worker's child dies, but not the worker. A forked child
starts its own count, with its own random numbers.
"""

import json
import os
import random
import signal
from collections.abc import Mapping
from typing import Any

from django_dcron.utils import sync_points

VARIABLE = "DCRON_TEST_FAULTS"


class Fault:
    def __init__(self, specified: Mapping[str, Any]):
        at = specified["at"]
        self.points = frozenset([at] if isinstance(at, str) else at)
        self.times: int = specified.get("times", 0)
        self.chance: float = specified.get("chance", 0.0)
        self.signal = signal.Signals[specified.get("signal", "SIGKILL")]
        self.passed = 0

    def pass_by(self, point: str) -> None:
        if point not in self.points:
            return
        self.passed += 1
        if self.passed == self.times or random.random() < self.chance:
            os.kill(os.getpid(), self.signal)


def install() -> None:
    """Install the fault that the environment specifies, if any."""
    if specified := os.environ.get(VARIABLE):
        fault = Fault(json.loads(specified))
        os.register_at_fork(after_in_child=random.seed)
        sync_points.listener = fault.pass_by
