"""The faults of a link between processes and a server."""

from datetime import timedelta

from tests.cluster.cluster import TIMEOUT, Cluster, now
from tests.fault_proxy import BOTH_WAYS, FaultProxy, Way
from tests.waiting import wait_until

LASTING_FAULTS = [
    "black hole",
    "black hole, requests only",
    "black hole, answers only",
    "delay of 0.3 s",
]
RESETS = 3
MOMENTARY_FAULTS = ["half-open", "reset within an answer"]


def break_link(cluster: Cluster, proxy: FaultProxy, fault: str, lasting: timedelta) -> None:
    """Inject the fault. If it is one of ``LASTING_FAULTS``, restore the link after ``lasting``."""
    if fault == "half-open":
        proxy.half_open()
        return
    if fault == "reset within an answer":
        before = proxy.resets
        proxy.reset_next_answers(RESETS)
        wait_until(lambda: proxy.resets == before + RESETS, TIMEOUT, what="the resets")
        return
    if fault == "delay of 0.3 s":
        proxy.slow_down(0.3)
    else:
        ways = {"requests": (Way.TO_SERVER,), "answers": (Way.TO_CLIENT,)}
        proxy.hold(*ways.get(fault.removeprefix("black hole, ").partition(" ")[0], BOTH_WAYS))
    cluster.wait_for(now() + lasting)
    proxy.restore()
