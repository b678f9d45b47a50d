"""The read-only admin of nodes and their health. ``node_parts`` refreshes its pages."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import lazy
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_dcron.admin.display import (
    EMPTY,
    badge,
    duration_or_empty,
    moment_column,
    render_muted,
    render_time,
    time_ago_text,
)
from django_dcron.admin.durations import configured_duration
from django_dcron.admin.lists.filters import LiveFilter
from django_dcron.admin.node_parts import LiveNodeAdmin
from django_dcron.conf import settings
from django_dcron.diagnosis import cluster
from django_dcron.diagnosis.cluster import (
    is_live,
    is_skewed,
    is_stalled,
    time_since,
    with_read_time,
)
from django_dcron.models import Node

RANGES_AT_ONCE = 40
"""If a node has more ranges of shards, the page collapses the complete list."""
JUST_NOW = timedelta(seconds=5)
"""A time less than this ago is shown as "just now"."""


def _no_nodes_text() -> str:
    text = gettext("No node is running. Nodes that stopped cleanly aren't listed.")
    return f"{text} {cluster.how_to_start_node()}"


@admin.register(Node)
class NodeAdmin(LiveNodeAdmin):
    list_display = (
        "name_and_host",
        "state",
        "last_seen",
        "shards_column",
        "agenda_column",
        "skew_column",
        "started_and_version",
    )
    list_filter = (LiveFilter,)
    search_fields = ("name", "host")
    empty_text = lazy(_no_nodes_text, str)()
    fieldsets = (
        (None, {"fields": ("name", "host", "pid", "version", "namespace_column", "started")}),
    )
    live_columns = (
        "state",
        "heartbeat",
        "tick",
        "shards_column",
        "assigned_shards_column",
        "agenda_column",
        "skew_column",
        "clock_doubt_column",
        "broker_column",
    )
    readonly_fields = ("state",)

    started = moment_column("started_at", _("started"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        """Add the database's time. By this machine's clock, a live node may look expired."""
        return with_read_time(super().get_queryset(request))

    @admin.display(description=_("name"), ordering="name")
    def name_and_host(self, node: Node) -> str:
        host = gettext("%(host)s, PID %(pid)d") % {"host": node.host, "pid": node.pid}
        namespace = ""
        if node.namespace:
            namespace = gettext("Namespace: %(name)s") % {"name": node.namespace}
        return format_html("{}{}{}", node.name, render_muted(host), render_muted(namespace))

    @admin.display(description=_("last heartbeat"), ordering="-heartbeat_at")
    def last_seen(self, node: Node) -> str:
        tick = ""
        if node.ticked_at:
            tick = gettext("Last tick %(time)s") % {"time": _ago(node, node.ticked_at)}
        return format_html("{}{}", _ago(node, node.heartbeat_at), render_muted(tick))

    @admin.display(description=_("started"), ordering="started_at")
    def started_and_version(self, node: Node) -> str:
        version = gettext("Version %(version)s") % {"version": node.version}
        return format_html("{}{}", render_time(node.started_at), render_muted(version))

    @admin.display(description=_("state"))
    def state(self, node: Node) -> str:
        note = ""
        if not is_live(node):
            note = gettext("no heartbeat for longer than %(lease)s, removed after 24 hours") % {
                "lease": configured_duration(settings.LEASE)
            }
        return format_html("{}{}", node_state_badge(node), render_muted(note))

    @admin.display(description=_("namespace"))
    def namespace_column(self, node: Node) -> str:
        return namespace_of(node)

    @admin.display(description=_("shards led"))
    def shards_column(self, node: Node) -> str:
        return str(node.shards) if is_live(node) else EMPTY

    @admin.display(description=_("assigned shards"))
    def assigned_shards_column(self, node: Node) -> str:
        """List the shards that hashing over all nodes of the ring assigns to this node."""
        if not is_live(node):
            return EMPTY
        assigned = cluster.assigned_shards(cluster.nodes()).get(node.pk, [])
        ranges = cluster.shard_ranges(assigned)
        text = ", ".join(ranges) or EMPTY
        if len(ranges) > RANGES_AT_ONCE:
            short = ", ".join([*ranges[:RANGES_AT_ONCE], "\N{HORIZONTAL ELLIPSIS}"])
            text = format_html("<details><summary>{}</summary>{}</details>", short, text)
        share = gettext("%(count)d of %(of)d shards are assigned to this node.") % {
            "count": len(assigned),
            "of": node.shard_count,
        }
        lock = (
            gettext("The node is degraded, so it leads these shards without locks.")
            + f" {node.lock_error}"
            if node.degraded
            else gettext("The node leads a shard while it has the shard's lock.")
        )
        return format_html("<div>{}{}</div>", text, render_muted(f"{share} {lock}"))

    @admin.display(description=_("agenda"))
    def agenda_column(self, node: Node) -> str:
        return str(node.agenda) if is_live(node) else EMPTY

    @admin.display(description=_("clock skew"))
    def skew_column(self, node: Node) -> str:
        return skew_of(node)

    @admin.display(description=_("unconfirmed database clock jump"))
    def clock_doubt_column(self, node: Node) -> str:
        return badge("degraded", duration_or_empty(node.clock_doubt)) if node.clock_doubt else EMPTY

    @admin.display(description=_("broker unreachable since"))
    def broker_column(self, node: Node) -> str:
        since = _when_and_how_long_ago(node, node.broker_unreachable_since)
        return format_html("{}{}", since, render_muted(node.broker_error))

    @admin.display(description=_("last heartbeat"))
    def heartbeat(self, node: Node) -> str:
        return _when_and_how_long_ago(node, node.heartbeat_at)

    @admin.display(description=_("last tick"))
    def tick(self, node: Node) -> str:
        return _when_and_how_long_ago(node, node.ticked_at)


def node_state_badge(node: Node) -> str:
    """Render the state, with the problems of a live node.

    An expired node isn't a problem if live nodes lead its shards.
    """
    if not is_live(node):
        return badge("cancelled", _("Expired"))
    stalled = is_stalled(node)
    problems = (
        (stalled, gettext("ticks fail")),
        (node.degraded, gettext("degraded")),
        (node.broker_unreachable_since, gettext("no broker")),
    )
    found = [text for applies, text in problems if applies]
    kind = "failed" if stalled else "degraded" if found else "live"
    return badge(kind, ", ".join([gettext("Live"), *found]))


def skew_of(node: Node) -> str:
    skew = duration_or_empty(node.skew)
    return badge("degraded", skew) if is_skewed(node) else skew


def namespace_of(node: Node) -> str:
    return node.namespace or str(_("all"))


def _when_and_how_long_ago(node: Node, at: datetime | None) -> str:
    return (
        format_html("<div>{}{}</div>", render_time(at), render_muted(_ago(node, at)))
        if at
        else EMPTY
    )


def _ago(node: Node, at: datetime | None) -> str:
    """Show a recent time as "just now", so that the page doesn't change each second."""
    if at is None:
        return EMPTY
    passed = time_since(node, at)
    return time_ago_text(timedelta() if passed < JUST_NOW else passed)
