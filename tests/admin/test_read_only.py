"""The form's values for users who may view a row but not change it."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from django_dcron import control
from django_dcron.models import Limit
from tests.admin.conftest import StaffWith, job_url
from tests.factories import make_idle_job

pytestmark = pytest.mark.django_db


def read_only_values(page: str) -> list[str]:
    return re.findall(r'<div class="readonly">([^<]*)<', page)


def test_durations_are_written_as_in_the_form_and_hidden_inputs_are_omitted(
    staff_with: StaffWith,
) -> None:
    minutes = timedelta(minutes=90)
    job = make_idle_job(timeout=minutes, jitter=timedelta())
    control.save_limit(Limit(name="sms", max_started=5, interval=minutes))
    viewer: Client = staff_with("view_job", "view_limit")

    shown = read_only_values(viewer.get(job_url(job)).content.decode())
    assert {"1h 30m", "0s"} <= {*shown}
    limit = viewer.get(reverse("admin:django_dcron_limit_change", args=["sms"])).content.decode()
    assert read_only_values(limit) == ["sms", "-", "-", "5", "1h 30m", "-", "0", "0"]
    assert str(Limit._meta.get_field("interval").help_text) in limit
