"""A node and its heartbeat: a ``runcron`` process, or a thread of a web server (``autostart``)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models import ExpressionWrapper, Q
from django.utils.translation import gettext_lazy as _

from django_dcron.db.now import UtcNow

ERROR_LIMIT = 200
"""The maximum number of characters of an error."""


class NodeQuerySet(models.QuerySet["Node"]):
    def live(self, lease: timedelta) -> NodeQuerySet:
        """Nodes whose heartbeat is younger than ``lease``, by the database's clock."""
        return self.filter(heartbeat_at__gt=UtcNow() - lease)

    def with_broker_state(self, lease: timedelta) -> models.QuerySet[Any, Any]:
        """Annotate ``broker_lost`` (for at least ``lease``) and ``broker_reached`` (now)."""
        lost = Q(
            broker_unreachable_since__isnull=False, broker_unreachable_since__lte=UtcNow() - lease
        )
        return self.annotate(
            broker_lost=ExpressionWrapper(lost, models.BooleanField()),
            broker_reached=ExpressionWrapper(
                Q(broker_unreachable_since=None), models.BooleanField()
            ),
        )

    def unknown(self, ids: Iterable[str]) -> set[str]:
        """Return the ids that aren't in this query: nodes of another database, or deleted ones."""
        wanted = {*ids}
        return wanted - {*self.filter(pk__in=wanted).values_list("pk", flat=True)}

    def expired(self, lease: timedelta) -> NodeQuerySet:
        return self.filter(heartbeat_at__lte=UtcNow() - lease)


class Node(models.Model):
    id = models.CharField(
        primary_key=True,
        max_length=190,
        editable=False,
        help_text=_("The node's name and a random suffix, created at startup."),
    )
    name = models.CharField(_("name"), max_length=120)
    namespace = models.CharField(
        _("namespace"), max_length=64, blank=True, help_text=_("Empty: all namespaces.")
    )
    host = models.CharField(_("host"), max_length=255)
    pid = models.PositiveIntegerField(_("process ID"))
    version = models.CharField(_("version"), max_length=32)
    started_at = models.DateTimeField(_("started at"))
    heartbeat_at = models.DateTimeField(_("heartbeat at"))
    ticked_at = models.DateTimeField(_("last tick at"), null=True)
    shards = models.PositiveIntegerField(_("shards led"), default=0)
    shard_count = models.PositiveIntegerField(
        _("total shards"),
        default=0,
        help_text=_("The node's DCRON_SHARDS setting. Only nodes with the same value share work."),
    )
    locks_in_database = models.BooleanField(
        _("locks in the database"),
        default=False,
        help_text=_(
            "The node's locks are in the database: DCRON_LOCK is database, or the node was started "
            "with --embedded."
        ),
    )
    once = models.BooleanField(
        _("makes one tick"),
        default=False,
        editable=False,
        help_text=_("The node was started with --once. Its heartbeats end no outage."),
    )
    agenda = models.PositiveIntegerField(_("runs on agenda"), default=0)
    skew = models.DurationField(
        _("clock skew"),
        default=timedelta(),
        help_text=_(
            "The node's clock minus the database's clock. Scheduling uses the database's clock."
        ),
    )
    clock_doubt = models.DurationField(
        _("unconfirmed database clock jump"),
        default=timedelta(),
        help_text=_(
            "How far the database's clock has jumped. The node doesn't follow the jump yet."
        ),
    )
    degraded = models.BooleanField(
        _("degraded"), default=False, help_text=_("The node can't use the lock server.")
    )
    lock_error = models.CharField(
        _("lock error"),
        max_length=ERROR_LIMIT,
        default="",
        editable=False,
        help_text=_("Why the node can't use the lock server. Empty if it can."),
    )
    broker_unreachable_since = models.DateTimeField(
        _("broker unreachable since"),
        null=True,
        help_text=_(
            "The node can't send runs to workers. Empty if the broker is reachable, as far "
            "as the node knows."
        ),
    )
    broker_error = models.CharField(
        _("broker error"),
        max_length=ERROR_LIMIT,
        default="",
        editable=False,
        help_text=_("The last error of a broker that is unreachable or accepts no messages."),
    )
    workers = models.JSONField(
        _("workers"),
        null=True,
        editable=False,
        help_text=_(
            "The latest replies of the Celery workers to this node. Empty if the node hasn't "
            "asked them yet."
        ),
    )
    """The replies of the workers, or None::

        {"at": instant, "replies": [{"name", "queues", "executes", "unknown_runs"}, ...]}

    ``at`` is the cluster time of the answer, in ISO 8601. ``executes``: the worker has
    django-dcron's task. ``unknown_runs``: ids of runs in this database that the worker received and
    didn't find in its own.
    """

    objects = NodeQuerySet.as_manager()

    class Meta:
        verbose_name = _("node")
        verbose_name_plural = _("nodes")
        ordering = ("name", "id")

    def __str__(self) -> str:
        return self.name
