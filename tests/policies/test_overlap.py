"""The overlap policies of jobs."""

from django_dcron.policies.overlap import OverlapPolicy, is_queueing, read_overlap_policy


def test_every_policy_except_allow_is_exclusive() -> None:
    assert {policy for policy in OverlapPolicy if not policy.exclusive} == {OverlapPolicy.ALLOW}


def test_runs_queue_under_queue_all_and_in_the_backlog_of_run_all() -> None:
    def queueing(runs_backlog: bool) -> set[str]:
        return {each for each in OverlapPolicy if is_queueing(each, runs_backlog=runs_backlog)}

    assert queueing(False) == {"queue_all"}
    assert queueing(True) == {"queue_all", "skip", "queue_one"}


def test_unknown_policy_is_read_as_skip() -> None:
    assert [read_overlap_policy(policy) for policy in OverlapPolicy] == list(OverlapPolicy)
    for stored in ("", "ALLOW", "one_per_weekday"):
        assert read_overlap_policy(stored) is OverlapPolicy.SKIP
