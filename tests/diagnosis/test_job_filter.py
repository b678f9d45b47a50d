"""The admin, the command line, the REST API and the metrics list the same jobs in a state."""

import re

import pytest
from django.test import Client

from django_dcron.diagnosis.job_filters import job_filter
from django_dcron.diagnosis.job_filters.job_filter import JobFilter
from django_dcron.diagnosis.job_state import is_failing
from django_dcron.jobs.cursors import disable_exhausted
from django_dcron.models import Cursor, Job
from django_dcron.models.statistics import count_ended_runs
from django_dcron.monitoring.metrics import catalog, cluster
from django_dcron.policies.lifecycle import State
from tests.admin.conftest import list_url
from tests.contrib.rest.conftest import Api
from tests.contrib.rest.conftest import api as api
from tests.factories import make_idle_job
from tests.management.calling import call

pytestmark = pytest.mark.django_db


def test_failing_has_one_meaning_everywhere(admin_client: Client, api: Api) -> None:
    names = ("failing", "recovered", "paused", "finished", "quarantined", "skipped", "new")
    jobs = {name: make_idle_job(name=name) for name in names}
    for name, ended in (("recovered", State.SUCCEEDED), ("skipped", State.SKIPPED)):
        count_ended_runs([jobs[name].pk], State.FAILED)
        count_ended_runs([jobs[name].pk], ended)
    for name in ("failing", "paused", "finished", "quarantined"):
        count_ended_runs([jobs[name].pk], State.FAILED)
    Job.objects.filter(name="paused").update(enabled=False)
    disable_exhausted([jobs["finished"].pk], "default")
    Cursor.objects.filter(pk=jobs["quarantined"].pk).update(problem="a zone that vanished")

    expected = {"failing", "skipped"}

    page = admin_client.get(list_url("job"), {"state": "failing"})
    command = call("list", "--json", "--failing").json["jobs"]
    listed = api.get("jobs/", state="failing").json()["results"]
    samples = [each for each in cluster.read_samples() if each.metric is catalog.JOBS_FAILING]
    assert {job.name for job in page.context["cl"].result_list} == expected
    assert {job["name"] for job in command} == expected
    assert {job["name"] for job in listed} == expected
    assert [sample.value for sample in samples] == [len(expected)]
    rows = Job.objects.select_related("cursor", "statistics")
    assert {job.name for job in rows if is_failing(job)} == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("n?chtlich", {"nächtlich"}),
        ("?chtlich", set()),
        ("*c?tlich", {"nächtlich"}),
        ("t?gl*", {"täglich"}),
        ("????lich", set()),
    ],
)
def test_question_mark_matches_one_character(pattern: str, expected: set[str]) -> None:
    names = {"nächtlich", "täglich"}
    for name in names:
        make_idle_job(name=name)
    assert {job.name for job in job_filter.jobs_matching(JobFilter(pattern=pattern))} == expected
    of_bytes = job_filter._regex(pattern, "mysql").encode()
    assert {name for name in names if re.search(of_bytes, name.encode())} == expected
