"""The first steps, which the dashboard shows until a job exists."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

from django_dcron.admin.display import list_url, may_view
from django_dcron.admin.visibility import visible_nodes
from django_dcron.diagnosis import cluster
from django_dcron.models import Job, Node


def context(request: HttpRequest, site: admin.AdminSite) -> dict[str, Any]:
    may_add = site.get_model_admin(Job).has_add_permission(request)
    sees_nodes = may_view(request, Node, site)
    return {
        "add_url": reverse("admin:django_dcron_job_add", current_app=site.name) if may_add else "",
        "live_nodes": sum(
            map(cluster.is_live, filter(visible_nodes(request, site), cluster.nodes()))
        )
        if sees_nodes
        else 0,
        "nodes_url": list_url(Node, site) if sees_nodes else "",
    }
