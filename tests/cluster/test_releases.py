"""Nodes and workers of two releases serve the same jobs, as in a deploy without a pause."""

from pathlib import Path

import pytest
from django.db.models import F

import django_dcron
from django_dcron.models import Attempt, Node, Run
from tests.cluster.cluster import IN_ALL_SHARDS, SECOND, TIMEOUT, Cluster, now
from tests.cluster.next_release import RELEASE, install_next_release
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.postgresql,
    pytest.mark.mariadb,
]


@pytest.mark.nightly
def test_two_releases_serve_the_same_jobs_during_a_deploy(cluster: Cluster, tmp_path: Path) -> None:
    """The later release also has another tick and look-ahead.

    Each release starts runs that the other dispatches and takes over runs that the other leaves.
    """
    later = install_next_release(tmp_path)
    later["DCRON_TEST_SETTINGS"] = '{"TICK": 0.3, "LOOK_AHEAD": 4}'
    present = {"DCRON_TEST_SETTINGS": '{"LOOK_AHEAD": 3}'}
    cluster.add_worker(env=later)
    cluster.start(**IN_ALL_SHARDS, nodes=1, workers=1, node_env=present)
    cluster.add_node(env=later)
    wait_until(
        lambda: cluster.leading() == 2, TIMEOUT, what="nodes of both releases to lead", interval=0.1
    )
    releases = dict(Node.objects.values_list("name", "version"))
    assert releases == {"node-0": django_dcron.__version__, "node-1": RELEASE}
    nodes = dict(Node.objects.values_list("name", "pk"))
    began = now()
    cluster.wait_for(began + 6 * SECOND)
    ended = now()
    assert cluster.nodes[0].leave() == 0
    cluster.wait_for(ended + 3 * SECOND)
    cluster.add_node(env=present)
    wait_until(
        lambda: cluster.leading() == 2, TIMEOUT, what="nodes of both releases to lead", interval=0.1
    )
    cluster.nodes[1].kill_for_good()
    cluster.wait_for(now() + 6 * SECOND)
    cluster.account()
    side_by_side = Run.objects.filter(scheduled_at__gt=began, scheduled_at__lte=ended)
    assert side_by_side.exists()
    assert not side_by_side.filter(claimed_at__gt=F("scheduled_at")).exists(), (
        "every job had a leader"
    )
    for name, node in nodes.items():
        executed = Attempt.objects.filter(run__in=Run.objects.filter(node=node))
        assert executed.filter(worker__startswith="next-").exists(), (
            f"a worker of the later release executed a run of {name}"
        )
        assert executed.exclude(worker__startswith="next-").exists(), (
            f"a worker of the current release executed a run of {name}"
        )
    assert not any(member.exits for member in [*cluster.nodes, *cluster.workers])
