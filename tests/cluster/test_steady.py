"""Without faults, every occurrence is one run, one attempt, one start."""

import pytest

from django_dcron.models import Attempt, Run
from tests.app.models import Witness
from tests.cluster import SECONDS
from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.chaos, pytest.mark.postgresql, pytest.mark.mariadb]


@pytest.mark.nightly
def test_each_occurrence_starts_once_without_faults(cluster: Cluster) -> None:
    jobs = cluster.start(jobs=20)
    cluster.run_for(SECONDS)
    verdict = cluster.account()
    assert verdict.expected >= len(jobs) * 3 / 8 * (SECONDS - 3), "half of the jobs run every 4 s"
    runs = Run.objects.filter(scheduled_at__gt=cluster.after, scheduled_at__lte=cluster.until)
    assert set(runs.values_list("state", "attempt")) == {("succeeded", 1)}
    assert runs.count() == verdict.expected == verdict.runs
    assert Attempt.objects.filter(run__in=runs).count() == verdict.expected
    witnesses = Witness.objects.filter(
        scheduled_at__gt=cluster.after, scheduled_at__lte=cluster.until
    )
    assert witnesses.count() == verdict.expected
    assert runs.exclude(node="").values("node").distinct().count() == 2, (
        "both nodes had their share"
    )
    for node in cluster.nodes:
        log = node.process.log
        assert not [line for line in log.splitlines() if " INFO " not in line], log
        assert not node.exits
