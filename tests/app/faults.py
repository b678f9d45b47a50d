"""Faults that befall a process of a test when it passes a sync point, as DCRON_TEST_FAULTS says.

    {"at": "publish.done", "times": 3, "signal": "SIGKILL"}    the third time, the process is sent that signal
    {"at": ["mark.begun", "mark.done"], "chance": 0.05, ...}   each time, with that probability, at any of these points

A signal goes to this process alone: a worker's child dies, not the worker. A forked child counts anew, with chances of its own.
"""

import json
import os
import random
import signal
from collections.abc import Mapping
from typing import Any

from django_dcron import sync_points

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
    """Let the fault that the environment asks for befall this process; without one, do nothing."""
    if specified := os.environ.get(VARIABLE):
        fault = Fault(json.loads(specified))
        os.register_at_fork(after_in_child=random.seed)
        sync_points.listener = fault.pass_by
