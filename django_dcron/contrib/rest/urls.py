"""The URLs of the API. An unknown URL below the mount point returns a 404 problem document."""

from __future__ import annotations

from django.urls import path, re_path
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from django_dcron.contrib.rest import schema
from django_dcron.contrib.rest.audit import AuditViewSet
from django_dcron.contrib.rest.calendars import CalendarViewSet
from django_dcron.contrib.rest.freezes import FreezeViewSet
from django_dcron.contrib.rest.incidents import IncidentViewSet
from django_dcron.contrib.rest.jobs.viewset import JobViewSet
from django_dcron.contrib.rest.limits import LimitViewSet
from django_dcron.contrib.rest.nodes import NodeViewSet
from django_dcron.contrib.rest.runs.viewset import RunViewSet
from django_dcron.contrib.rest.statistics import StatsViewSet
from django_dcron.contrib.rest.viewsets import BaseView

app_name = "dcron"

router = SimpleRouter(use_regex_path=False)
router.register("jobs", JobViewSet, "job")
router.register("calendars", CalendarViewSet, "calendar")
router.register("limits", LimitViewSet, "limit")
router.register("runs", RunViewSet, "run")
router.register("freezes", FreezeViewSet, "freeze")
router.register("incidents", IncidentViewSet, "incident")
router.register("nodes", NodeViewSet, "node")
router.register("audit", AuditViewSet, "audit")
router.register("stats", StatsViewSet, "stats")


class OpenAPIDocument(BaseView):
    """The OpenAPI document."""

    def get(self, request: Request) -> Response:
        return Response(schema.openapi_document(request, tuple(router.urls), "schema/"))


class UnknownURL(BaseView):
    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound


urlpatterns = [
    *router.urls,
    path("schema/", OpenAPIDocument.as_view(), name="schema"),
    re_path(r"^(?:[\s\S]*/)?$", UnknownURL.as_view()),
]
