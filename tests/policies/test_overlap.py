"""The overlap policies of jobs."""

from django_dcron.policies.overlap import OverlapPolicy, read_policy


def test_every_policy_but_allow_needs_the_slot() -> None:
    assert {policy for policy in OverlapPolicy if not policy.exclusive} == {OverlapPolicy.ALLOW}


def test_an_unknown_policy_is_the_strictest() -> None:
    assert [read_policy(policy) for policy in OverlapPolicy] == list(OverlapPolicy)
    for stored in ("", "ALLOW", "one_per_weekday"):
        assert read_policy(stored) is OverlapPolicy.SKIP
