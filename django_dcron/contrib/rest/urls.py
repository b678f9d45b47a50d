"""The URLs of the API. Unknown URLs below the mount point get a problem document, too."""

from __future__ import annotations

from django.urls import path, re_path
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron.contrib.rest import schema
from django_dcron.contrib.rest.calendars.editing import CalendarDetail
from django_dcron.contrib.rest.calendars.listing import Calendars
from django_dcron.contrib.rest.jobs.actions import Pause, Resume, Trigger
from django_dcron.contrib.rest.jobs.backfilling import Backfill
from django_dcron.contrib.rest.jobs.editing import JobDetail
from django_dcron.contrib.rest.jobs.listing import Jobs
from django_dcron.contrib.rest.jobs.preview import JobPreview, Preview
from django_dcron.contrib.rest.nodes import Nodes
from django_dcron.contrib.rest.runs.detail import Cancel, Log, Rerun, RunDetail
from django_dcron.contrib.rest.runs.listing import Runs
from django_dcron.contrib.rest.statistics import JobStats, Stats
from django_dcron.contrib.rest.view import View

app_name = "dcron"

documented = [
    path("jobs/", Jobs.as_view(), name="jobs"),
    path("jobs/preview/", Preview.as_view(), name="preview"),
    path("jobs/<str:job_id>/", JobDetail.as_view(), name="job"),
    path("jobs/<str:job_id>/pause/", Pause.as_view(), name="pause"),
    path("jobs/<str:job_id>/resume/", Resume.as_view(), name="resume"),
    path("jobs/<str:job_id>/trigger/", Trigger.as_view(), name="trigger"),
    path("jobs/<str:job_id>/preview/", JobPreview.as_view(), name="job-preview"),
    path("jobs/<str:job_id>/backfill/", Backfill.as_view(), name="backfill"),
    path("jobs/<str:job_id>/stats/", JobStats.as_view(), name="job-stats"),
    path("calendars/", Calendars.as_view(), name="calendars"),
    path("calendars/<str:calendar_name>/", CalendarDetail.as_view(), name="calendar"),
    path("runs/", Runs.as_view(), name="runs"),
    path("runs/<str:run_id>/", RunDetail.as_view(), name="run"),
    path("runs/<str:run_id>/log/", Log.as_view(), name="log"),
    path("runs/<str:run_id>/cancel/", Cancel.as_view(), name="cancel"),
    path("runs/<str:run_id>/rerun/", Rerun.as_view(), name="rerun"),
    path("nodes/", Nodes.as_view(), name="nodes"),
    path("stats/", Stats.as_view(), name="stats"),
]


class Document(View):
    """The OpenAPI document."""

    schema = None

    def get(self, request: Request) -> Response:
        return Response(schema.document(request, "schema/"))


class Unknown(View):
    schema = None

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound


urlpatterns = [
    *documented,
    path("schema/", Document.as_view(), name="schema"),
    re_path(r"^(?:[\s\S]*/)?$", Unknown.as_view()),
]
