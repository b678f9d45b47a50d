"""Codes in the database, the API and the metrics don't change with their wording."""

from enum import StrEnum

import pytest

from django_dcron.policies.alerting import AlertKind
from django_dcron.policies.chains import ChainCondition
from django_dcron.policies.health.problems import Problem, Severity
from django_dcron.policies.health.verdict import SystemStatus
from django_dcron.policies.lifecycle import Outcome, State, Trigger
from django_dcron.policies.misfire import MisfirePolicy
from django_dcron.policies.overlap import OverlapPolicy
from django_dcron.schedules.calendar import ExclusionPolicy
from django_dcron.schedules.clock_changes import Effect


@pytest.mark.parametrize(
    "codes",
    [
        Effect,
        ExclusionPolicy,
        AlertKind,
        MisfirePolicy,
        ChainCondition,
        Outcome,
        OverlapPolicy,
        Problem,
        Severity,
        State,
        SystemStatus,
        Trigger,
    ],
)
def test_codes_are_their_names_in_lower_case(codes: type[StrEnum]) -> None:
    assert [code.value for code in codes] == [code.name.lower() for code in codes]
