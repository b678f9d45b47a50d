"""The endpoint of the audit log."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.base_serializers import AnySerializer, StrictModelSerializer
from django_dcron.contrib.rest.pagination import (
    Narrow,
    NextPage,
    PageOrder,
    PageQuery,
    page_of,
    page_response,
)
from django_dcron.contrib.rest.schema import operation
from django_dcron.contrib.rest.viewsets import LARGEST_KEY, BaseViewSet
from django_dcron.diagnosis.audit_log import COLUMNS, entries_between, visible_entries
from django_dcron.models import AuditAction, AuditEntry, AuditKind, Via

ORDER = PageOrder("-at", ("at", "id"), descending=True)
NARROWED = ("action", "kind", "via", "actor")
"""The filters that no index supports."""


class AuditEntrySerializer(StrictModelSerializer):
    """Who did what, when, from where and how. Secrets are masked."""

    before = fields.JsonObjectField(read_only=True, help_text="The old values.")
    after = fields.JsonObjectField(read_only=True, help_text="The new values.")

    class Meta:
        model = AuditEntry
        fields = COLUMNS
        read_only_fields = fields


class AuditPageSerializer(AnySerializer):
    next = NextPage()
    results = AuditEntrySerializer(many=True, read_only=True)


class AuditQuery(PageQuery):
    since = fields.UtcTimeField(required=False, help_text="The start of the range (included).")
    until = fields.UtcTimeField(required=False, help_text="The end of the range (excluded).")
    job = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=LARGEST_KEY,
        help_text="The entries of this job and of its runs.",
    )
    actor = serializers.CharField(required=False, max_length=150, help_text="The user's name.")
    action = fields.StrictChoiceField(AuditAction.values, required=False)
    kind = fields.StrictChoiceField(AuditKind.values, required=False)
    via = fields.StrictChoiceField(Via.values, required=False)


class AuditViewSet(BaseViewSet):
    @operation(
        "list_audit_entries",
        "List the entries of the audit log, latest first",
        {200: AuditPageSerializer()},
        permissions=("view_auditentry",),
        query=AuditQuery,
    )
    def list(self, request: Request) -> Response:
        query = self.validate(AuditQuery, request.query_params)
        rows: Any = self.scope.rows(AuditEntry)
        entries = visible_entries(rows, self.scope)
        entries = entries_between(entries, query.get("since"), query.get("until"))
        if "job" in query:
            entries = entries.filter(job_id=query["job"])
        page = page_of(entries, ORDER, query, _narrow(query))
        return page_response(request, page, AuditEntrySerializer(page.rows, many=True).data)


def _narrow(query: dict[str, Any]) -> Narrow[AuditEntry] | None:
    chosen = {name: query[name] for name in NARROWED if name in query}
    if not chosen:
        return None

    def narrow(entries: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        return entries.filter(**chosen)

    return narrow
