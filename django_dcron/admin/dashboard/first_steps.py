"""The first steps, which the dashboard shows until a job exists."""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from django_dcron.admin.dashboard.viewer import Viewer
from django_dcron.admin.display import list_url
from django_dcron.admin.visibility import visible_nodes
from django_dcron.diagnosis import cluster
from django_dcron.models import Node


def context(viewer: Viewer) -> dict[str, Any]:
    site, sees_nodes = viewer.site, viewer.may_view(Node)
    live_nodes = 0
    if sees_nodes:
        nodes = filter(visible_nodes(viewer.scope), cluster.nodes())
        live_nodes = sum(map(cluster.is_live, nodes))
    add_url = reverse("admin:django_dcron_job_add", current_app=site.name)
    return {
        "has_jobs": viewer.scope.jobs.order_by().exists(),
        "add_url": add_url if viewer.adds_jobs else "",
        "live_nodes": live_nodes,
        "nodes_url": list_url(Node, site) if sees_nodes else "",
    }
