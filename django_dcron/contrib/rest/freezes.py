"""Freezes over HTTP: list the ones in force, begin one, end one."""

from __future__ import annotations

from django.utils import translation
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron import control
from django_dcron.contrib.rest import fields
from django_dcron.contrib.rest.base_serializers import (
    AnySerializer,
    StrictModelSerializer,
    StrictSerializer,
)
from django_dcron.contrib.rest.problems import ActionRefused
from django_dcron.contrib.rest.schema import operation
from django_dcron.contrib.rest.viewsets import (
    BaseViewSet,
    number_or_404,
    row_or_404,
)
from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.visible_rows import visible_freezes
from django_dcron.exceptions import NotPossible
from django_dcron.jobs.freezing import unknown_namespace
from django_dcron.jobs.pausing import LONGEST_STORED_REASON
from django_dcron.models import Freeze, Job
from django_dcron.policies.freezing import ALL_NAMESPACES

ROW = ("id", "namespace", "reason", "frozen_by", "since", "until", "ended_by")
LONGEST_NAMESPACE = 64


class FreezeSerializer(StrictModelSerializer):
    """A freeze of one namespace or of all namespaces."""

    class Meta:
        model = Freeze
        fields = ROW
        read_only_fields = fields


class FreezesSerializer(AnySerializer):
    results = FreezeSerializer(many=True, read_only=True)


class NewFreezeSerializer(StrictSerializer):
    reason = fields.StrictCharField(
        max_length=LONGEST_STORED_REASON, help_text="Why scheduling is frozen, such as deploy."
    )
    namespace = fields.StrictCharField(
        required=False,
        allow_blank=True,
        default=ALL_NAMESPACES,
        max_length=LONGEST_NAMESPACE,
        help_text="The namespace whose jobs don't start. If empty, all namespaces are frozen.",
    )
    until = fields.UtcTimeField(
        required=False,
        allow_null=True,
        default=None,
        help_text="When the freeze ends automatically, such as 2026-12-01T09:00:00Z. If null, the "
        "freeze lasts until it is deleted.",
    )
    replace = fields.StrictBooleanField(
        default=False,
        help_text="Whether to replace a freeze in force that has another reason or a later end.",
    )


class FreezeQuery(StrictSerializer):
    namespace = serializers.CharField(
        required=False,
        max_length=LONGEST_NAMESPACE,
        help_text="Freezes that apply to this namespace, including freezes of all namespaces.",
    )


class EndFreezeQuery(StrictSerializer):
    reason = serializers.CharField(
        required=False,
        help_text="The reason of the freeze to end. If another freeze has replaced it, it isn't "
        "ended.",
    )


class FreezeViewSet(BaseViewSet):
    lookup_url_kwarg = "freeze_id"

    @operation(
        "list_freezes",
        "List the freezes that are in force",
        {200: FreezesSerializer()},
        permissions=("view_job",),
        query=FreezeQuery,
    )
    def list(self, request: Request) -> Response:
        query = self.validate(FreezeQuery, request.query_params)
        freezes = visible_freezes(self.scope)
        if "namespace" in query:
            freezes = freezes.covering(query["namespace"])
        freezes = freezes.in_force()
        return Response({"results": FreezeSerializer(freezes, many=True).data})

    @operation(
        "create_freeze",
        "Freeze scheduling of one or all namespaces; running and manual runs continue",
        {201: FreezeSerializer()},
        permissions=("view_job", "freeze_jobs"),
        body=NewFreezeSerializer(),
        error_responses={409: "A freeze with another reason is in force, and replace is false."},
    )
    def create(self, request: Request) -> Response:
        values = self.validate(NewFreezeSerializer, request.data)
        self._check_affected_jobs_visible(values["namespace"])
        try:
            freeze = control.freeze(
                values["reason"],
                values["namespace"],
                values["until"],
                replace=values["replace"],
                by=request.user.get_username(),
            )
        except NotPossible as refused:
            remedy = _('To replace it, send "replace": true.')
            raise ActionRefused(f"{refused.translate(translation)} {remedy}") from None
        return Response(FreezeSerializer(freeze).data, status=201)

    @operation(
        "delete_freeze",
        "End a freeze",
        {204: None},
        permissions=("view_job", "freeze_jobs"),
        query=EndFreezeQuery,
        error_responses={409: "The freeze has ended, or has another reason than the given one."},
    )
    def destroy(self, request: Request, freeze_id: str) -> Response:
        reason = self.validate(EndFreezeQuery, request.query_params).get("reason")
        freeze = row_or_404(visible_freezes(self.scope), number_or_404(freeze_id))
        self._check_affected_jobs_visible(freeze.namespace)
        control.unfreeze(freeze.namespace, reason=reason, by=request.user.get_username())
        return Response(status=204)

    def _check_affected_jobs_visible(self, namespace: str) -> None:
        """Raise ``PermissionDenied`` if the freeze would affect jobs that the user may not see."""
        if not self.scope.narrows(Job):
            return
        affected = Job.objects.using(alias_for(Job))
        if namespace != ALL_NAMESPACES:
            if not self.scope.jobs.filter(namespace=namespace).exists():
                raise unknown_namespace(namespace)
            affected = affected.filter(namespace=namespace)
        if affected.exclude(pk__in=self.scope.keys(Job)).exists():
            raise PermissionDenied(
                _("You don't have permission to view all jobs that the freeze affects.")
            )
