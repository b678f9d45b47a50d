"""Incidents over HTTP: list them, read one, set the state of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.base_serializers import (
    AnySerializer,
    StrictModelSerializer,
    StrictSerializer,
)
from django_dcron.contrib.rest.pagination import (
    NextPage,
    PageOrder,
    PageQuery,
    page_of,
    page_response,
)
from django_dcron.contrib.rest.schema import operation
from django_dcron.contrib.rest.viewsets import (
    LARGEST_KEY,
    BaseViewSet,
    number_or_404,
    row_or_404,
)
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.visible_rows import visible_incidents
from django_dcron.jobs.incidents import LONGEST_NOTE
from django_dcron.models import Incident, Run
from django_dcron.policies.incidents import IncidentState

ORDER = PageOrder("-last_seen_at", ("last_seen_at", "id"), descending=True)
STATES = [state.value for state in IncidentState]


class IncidentSerializer(StrictModelSerializer):
    """Failures of one job with the same exception and, apart from numbers, the same message."""

    job = serializers.IntegerField(source="job_id", read_only=True)
    job_name = serializers.CharField(source="job", read_only=True)

    class Meta:
        model = Incident
        fields = (
            "id",
            "job",
            "job_name",
            "exception_class",
            "message",
            "state",
            "count",
            "first_seen_at",
            "last_seen_at",
            "returned_at",
            "resolved_at",
            "last_run",
            "changed_by",
            "changed_at",
            "note",
        )
        read_only_fields = fields


class IncidentPageSerializer(AnySerializer):
    next = NextPage()
    results = IncidentSerializer(many=True, read_only=True)


class IncidentQuery(PageQuery):
    state = fields.StrictChoiceField(STATES, required=False)
    job = serializers.IntegerField(required=False, min_value=1, max_value=LARGEST_KEY)


class IncidentStateSerializer(StrictSerializer):
    state = fields.StrictChoiceField(STATES, help_text="The new state.")
    note = fields.StrictCharField(
        required=False,
        allow_blank=True,
        default="",
        max_length=LONGEST_NOTE,
        help_text="Why the state is set.",
    )


class IncidentViewSet(BaseViewSet):
    lookup_url_kwarg = "incident_id"

    @operation(
        "list_incidents",
        "List incidents, the one with the latest failure first",
        {200: IncidentPageSerializer()},
        permissions=("view_incident",),
        query=IncidentQuery,
    )
    def list(self, request: Request) -> Response:
        query = self.validate(IncidentQuery, request.query_params)
        filters: dict[str, Any] = {name: query[name] for name in ("state", "job") if name in query}
        page = page_of(self._visible().filter(**filters), ORDER, query)
        return page_response(request, page, self._shown(page.rows))

    @operation(
        "read_incident",
        "Get an incident",
        {200: IncidentSerializer()},
        permissions=("view_incident",),
    )
    def retrieve(self, request: Request, incident_id: str) -> Response:
        return Response(self._shown([self._incident(incident_id)])[0])

    @action(detail=True, methods=["post"])
    @operation(
        "set_incident_state",
        "Acknowledge, mute, resolve or open an incident",
        {200: IncidentSerializer()},
        permissions=("view_incident", "acknowledge_incident"),
        body=IncidentStateSerializer(),
        error_responses={409: "The incident's state doesn't allow the change."},
    )
    def state(self, request: Request, incident_id: str) -> Response:
        incident = self._incident(incident_id)
        values = self.validate(IncidentStateSerializer, request.data)
        changed = control.set_incident_state(
            incident,
            IncidentState(values["state"]),
            by=request.user.get_username(),
            note=values["note"],
        )
        return Response(self._shown([changed])[0])

    def _shown(self, incidents: Sequence[Incident]) -> Sequence[dict[str, Any]]:
        """Return the incidents without the ids of runs that the request may not see."""
        serialized: Any = IncidentSerializer(incidents, many=True).data
        shown: Sequence[dict[str, Any]] = serialized
        if self.scope.narrows(Run):
            run_ids = [incident.last_run for incident in incidents if incident.last_run]
            visible = {*self.scope.runs.filter(pk__in=run_ids).values_list("pk", flat=True)}
            for row, incident in zip(shown, incidents, strict=True):
                if incident.last_run not in visible:
                    row["last_run"] = None
        return shown

    def _visible(self) -> QuerySet[Incident]:
        rows = Incident.objects.using(alias_for(Incident)).select_related("job")
        return visible_incidents(rows, self.scope)

    def _incident(self, incident_id: str) -> Incident:
        return row_or_404(self._visible(), number_or_404(incident_id))
