"""A node: one ``runcron`` process, and its heartbeat."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models import ExpressionWrapper, Q
from django.utils.translation import gettext_lazy as _

from django_dcron.models.database import UtcNow


class NodeQuerySet(models.QuerySet["Node"]):
    def live(self, lease: timedelta) -> NodeQuerySet:
        """Those whose heartbeat is younger than ``lease``, by the database's clock."""
        return self.filter(heartbeat_at__gt=UtcNow() - lease)

    def broker_known(self, lease: timedelta) -> models.QuerySet[Any, Any]:
        """Annotated with ``broker_lost``, for ``lease`` at least, and with ``broker_reached``."""
        lost = Q(broker_away_since__isnull=False, broker_away_since__lte=UtcNow() - lease)
        return self.annotate(
            broker_lost=ExpressionWrapper(lost, models.BooleanField()),
            broker_reached=ExpressionWrapper(Q(broker_away_since=None), models.BooleanField()),
        )

    def expired(self, lease: timedelta) -> NodeQuerySet:
        return self.filter(heartbeat_at__lte=UtcNow() - lease)


class Node(models.Model):
    id = models.CharField(
        primary_key=True,
        max_length=190,
        editable=False,
        help_text=_("The node's name and a part made at its start."),
    )
    name = models.CharField(_("name"), max_length=120)
    namespace = models.CharField(_("namespace"), max_length=64, blank=True, help_text=_("Empty: all."))
    host = models.CharField(_("host"), max_length=255)
    pid = models.PositiveIntegerField(_("process"))
    release = models.CharField(_("release"), max_length=32)
    started_at = models.DateTimeField(_("started at"))
    heartbeat_at = models.DateTimeField(_("heartbeat at"))
    ticked_at = models.DateTimeField(_("last tick at"), null=True)
    shards = models.PositiveIntegerField(_("shards led"), default=0)
    shard_count = models.PositiveIntegerField(
        _("of how many shards"),
        default=0,
        help_text=_("Its DCRON_SHARDS. Nodes share work with those that have the same."),
    )
    agenda = models.PositiveIntegerField(_("runs on its agenda"), default=0)
    skew = models.DurationField(
        _("clock skew"),
        default=timedelta(),
        help_text=_("Its wall clock less the database's; it schedules by the latter."),
    )
    degraded = models.BooleanField(
        _("degraded"), default=False, help_text=_("It cannot reach the lock's server.")
    )
    broker_away_since = models.DateTimeField(
        _("broker unreachable since"),
        null=True,
        help_text=_("It can't dispatch runs. Empty: it can, as far as it knows."),
    )
    workers = models.JSONField(
        _("workers"),
        null=True,
        editable=False,
        help_text=_("What Celery's workers answered when this node last asked them. Empty: it hasn't asked."),
    )
    """``{"at": instant, "answered": [{"name", "queues", "executes", "unknown_runs"}, ...]}``, or None.

    ``at`` is the cluster time of the answer, in ISO 8601. ``executes``: the worker has django-dcron's task. ``unknown_runs``: ids of
    runs in this database that the worker received and didn't find in its own.
    """

    objects = NodeQuerySet.as_manager()

    class Meta:
        verbose_name = _("node")
        verbose_name_plural = _("nodes")
        ordering = ("name", "id")

    def __str__(self) -> str:
        return self.name
