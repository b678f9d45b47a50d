"""Codes that the database, the API and the metrics contain never change with the code's wording."""

from enum import StrEnum

import pytest

from django_dcron.domain.alerting import Kind
from django_dcron.domain.calendar import ExclusionPolicy
from django_dcron.domain.chains import On
from django_dcron.domain.clock_changes import Effect
from django_dcron.domain.lifecycle import Outcome, State, Trigger
from django_dcron.domain.misfire import MisfirePolicy
from django_dcron.domain.overlap import OverlapPolicy
from django_dcron.domain.system_health import Problem, Severity, SystemStatus


@pytest.mark.parametrize(
    "codes",
    [
        Effect,
        ExclusionPolicy,
        Kind,
        MisfirePolicy,
        On,
        Outcome,
        OverlapPolicy,
        Problem,
        Severity,
        State,
        SystemStatus,
        Trigger,
    ],
)
def test_a_code_is_its_name_in_lower_case(codes: type[StrEnum]) -> None:
    assert [code.value for code in codes] == [code.name.lower() for code in codes]
