"""The overlap policies of jobs."""

from django_dcron.policies.overlap import OverlapPolicy, read_overlap_policy


def test_every_policy_except_allow_is_exclusive() -> None:
    assert {policy for policy in OverlapPolicy if not policy.exclusive} == {OverlapPolicy.ALLOW}


def test_unknown_policy_is_read_as_skip() -> None:
    assert [read_overlap_policy(policy) for policy in OverlapPolicy] == list(OverlapPolicy)
    for stored in ("", "ALLOW", "one_per_weekday"):
        assert read_overlap_policy(stored) is OverlapPolicy.SKIP
