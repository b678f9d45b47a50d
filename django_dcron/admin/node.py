"""Nodes: who schedules, and how they are. Read-only."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_dcron.admin.base import ReadOnlyAdmin
from django_dcron.admin.display import EMPTY, badge, moment, moment_column, quiet, span
from django_dcron.admin.lists.base import ListAdmin
from django_dcron.admin.lists.filters import LiveFilter
from django_dcron.models import Node
from django_dcron.observability import cluster
from django_dcron.observability.cluster import age, is_live, is_skewed, with_time

RANGES_AT_ONCE = 40


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin[Node], ListAdmin[Node]):
    list_display = (
        "name_and_place",
        "state",
        "last_seen",
        "shards_column",
        "agenda_column",
        "skew_column",
        "started_and_release",
    )
    list_filter = (LiveFilter,)
    search_fields = ("name", "host")
    nothing_yet = _("No node has been up of late. Start one: manage.py runcron.")
    fieldsets = (
        (None, {"fields": ("name", "state", "host", "pid", "release", "namespace_column")}),
        (
            _("Now"),
            {
                "fields": (
                    "shards_column",
                    "own_shards",
                    "agenda_column",
                    "skew_column",
                    "heartbeat",
                    "tick",
                    "started",
                )
            },
        ),
    )
    readonly_fields = ("state",)

    started = moment_column("started_at", _("started"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        """With the database's time: by this machine's clock a living node may look dead."""
        return with_time(super().get_queryset(request))

    @admin.display(description=_("name"), ordering="name")
    def name_and_place(self, node: Node) -> str:
        place = gettext("%(host)s, process %(pid)d") % {"host": node.host, "pid": node.pid}
        only = gettext("namespace %(name)s only") % {"name": node.namespace} if node.namespace else ""
        return format_html("{}{}{}", node.name, quiet(place), quiet(only))

    @admin.display(description=_("last heartbeat"), ordering="-heartbeat_at")
    def last_seen(self, node: Node) -> str:
        tick = gettext("last tick %(time)s") % {"time": _ago(node, node.ticked_at)} if node.ticked_at else ""
        return format_html("{}{}", _ago(node, node.heartbeat_at), quiet(tick))

    @admin.display(description=_("started"), ordering="started_at")
    def started_and_release(self, node: Node) -> str:
        release = gettext("release %(release)s") % {"release": node.release}
        return format_html("{}{}", moment(node.started_at), quiet(release))

    @admin.display(description=_("state"))
    def state(self, node: Node) -> str:
        shown = state_badge_of(node)
        return shown if is_live(node) else format_html("{}{}", shown, quiet(_("struck off after a day")))

    @admin.display(description=_("namespace"))
    def namespace_column(self, node: Node) -> str:
        return namespace_of(node)

    @admin.display(description=_("shards led"))
    def shards_column(self, node: Node) -> str:
        return str(node.shards) if is_live(node) else EMPTY

    @admin.display(description=_("its own shards"))
    def own_shards(self, node: Node) -> str:
        """Those it is named for: only all nodes of its ring together tell which."""
        if not is_live(node):
            return EMPTY
        named = cluster.named_shards(cluster.nodes()).get(node.pk, [])
        ranges = cluster.in_ranges(named)
        shown = ", ".join(ranges) or EMPTY
        if len(ranges) > RANGES_AT_ONCE:
            short = ", ".join([*ranges[:RANGES_AT_ONCE], "\N{HORIZONTAL ELLIPSIS}"])
            shown = format_html("<details><summary>{}</summary>{}</details>", short, shown)
        how = gettext("%(count)d of %(of)d, by the hashing of the live nodes.") % {
            "count": len(named),
            "of": node.shard_count,
        }
        lock = (
            gettext("It is degraded, and leads them without locks.")
            if node.degraded
            else gettext("It leads each of them while it holds its lock.")
        )
        return format_html("<div>{}{}</div>", shown, quiet(f"{how} {lock}"))

    @admin.display(description=_("agenda"))
    def agenda_column(self, node: Node) -> str:
        return str(node.agenda) if is_live(node) else EMPTY

    @admin.display(description=_("clock skew"))
    def skew_column(self, node: Node) -> str:
        return skew_of(node)

    @admin.display(description=_("last heartbeat"))
    def heartbeat(self, node: Node) -> str:
        return _when_and_how_long_ago(node, node.heartbeat_at)

    @admin.display(description=_("last tick"))
    def tick(self, node: Node) -> str:
        return _when_and_how_long_ago(node, node.ticked_at)


def state_badge_of(node: Node) -> str:
    if not is_live(node):
        return badge("lost", _("expired"))
    return badge("degraded", _("live, degraded")) if node.degraded else badge("live", _("live"))


def skew_of(node: Node) -> str:
    return badge("degraded", span(node.skew)) if is_skewed(node) else span(node.skew)


def namespace_of(node: Node) -> str:
    return node.namespace or str(_("all"))


def _when_and_how_long_ago(node: Node, at: datetime | None) -> str:
    return format_html("<div>{}{}</div>", moment(at), quiet(_ago(node, at))) if at else EMPTY


def _ago(node: Node, at: datetime | None) -> str:
    return _("%(time)s ago") % {"time": span(max(age(node, at), timedelta()))} if at else EMPTY
