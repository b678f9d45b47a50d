"""Wall clocks that are ten minutes wrong or change during the run: no process schedules by them."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.db.models import Q

from django_dcron.models import Node
from tests.cluster import dispatch_lag
from tests.cluster.cluster import IN_ALL_SHARDS, SECOND, TIMEOUT, Cluster, now
from tests.cluster.wrong_clock import WrongClock
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.postgresql,
    pytest.mark.mariadb,
]

TEN_MINUTES = 600


@pytest.mark.nightly
def test_wrong_and_changing_wall_clocks_do_not_affect_scheduling(
    cluster: Cluster, tmp_path: Path
) -> None:
    """One node's clock is right, one is ahead, one is behind, and one is set forward and back.

    One worker's clock is behind, and the other's is set like that of the last node.
    """
    ahead = WrongClock(tmp_path / "ahead", TEN_MINUTES)
    behind = WrongClock(tmp_path / "behind", -TEN_MINUTES)
    unsteady = WrongClock(tmp_path / "unsteady", 0)
    cluster.add_worker(env=behind.env)
    cluster.add_worker(env=unsteady.env)
    cluster.start(**IN_ALL_SHARDS, nodes=1, workers=0)
    for clock in (ahead, behind, unsteady):
        cluster.add_node(env=clock.env)
    wait_until(lambda: cluster.leading() == 4, TIMEOUT, what="four nodes that lead", interval=0.1)
    shown = {"node-0": 0, "node-1": TEN_MINUTES, "node-2": -TEN_MINUTES}
    began = now()
    for offset in (0, TEN_MINUTES, -TEN_MINUTES):
        unsteady.set(offset)
        _wait_for_skews(shown | {"node-3": offset})
        cluster.wait_for(now() + 2 * SECOND)
    names = dict(Node.objects.values_list("name", "pk"))
    until = now()
    cluster.account(accepted={"node_skewed"})
    right = _median(names["node-0"], began, until)
    for name in ("node-1", "node-2", "node-3"):
        assert _median(names[name], began, until) < right + SECOND, name
    assert all(not member.exits for member in [*cluster.nodes, *cluster.workers])


def _wait_for_skews(expected: dict[str, int]) -> None:
    def shown() -> bool:
        skews = dict(Node.objects.values_list("name", "skew"))
        return skews.keys() == expected.keys() and all(
            abs(skews[name] - timedelta(seconds=offset)) < 30 * SECOND
            for name, offset in expected.items()
        )

    wait_until(shown, TIMEOUT, what=f"skews of {expected}", interval=0.1)


def _median(node: str, after: datetime, until: datetime) -> timedelta:
    return dispatch_lag.percentile(
        dispatch_lag.dispatch_lags(Q(node=node), after=after, until=until), 50
    )
