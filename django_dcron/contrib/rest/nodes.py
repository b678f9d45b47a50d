"""The nodes: each ``runcron`` process, and whether it is live by the database's clock."""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_dcron.contrib.rest.base_serializers import (
    AnySerializer,
    StrictModelSerializer,
    StrictSerializer,
)
from django_dcron.contrib.rest.schema import operation
from django_dcron.contrib.rest.viewsets import BaseViewSet
from django_dcron.diagnosis import cluster
from django_dcron.models import Node

ROW = tuple(field.name for field in Node._meta.concrete_fields)


class NodeSerializer(StrictModelSerializer):
    """A `runcron` process. `skew` is in seconds."""

    skew = serializers.SerializerMethodField(
        help_text="The node's wall clock minus the database's clock, in seconds."
    )
    live = serializers.SerializerMethodField(
        help_text="Whether the last heartbeat is younger than the lease."
    )
    stalled = serializers.SerializerMethodField(
        help_text="Whether the node sends heartbeats but its ticks fail."
    )

    class Meta:
        model = Node
        fields = (*ROW, "live", "stalled")
        read_only_fields = fields

    def get_skew(self, node: Node) -> float:
        return node.skew.total_seconds()

    def get_live(self, node: Node) -> bool:
        return cluster.is_live(node)

    def get_stalled(self, node: Node) -> bool:
        return cluster.is_stalled(node)


class NodesSerializer(AnySerializer):
    results = NodeSerializer(many=True, read_only=True)


class NodeQuery(StrictSerializer):
    namespace = serializers.CharField(
        required=False, default="", max_length=64, help_text="Nodes that serve this namespace."
    )


class NodeViewSet(BaseViewSet):
    @operation(
        "list_nodes",
        "List nodes, live or not",
        {200: NodesSerializer()},
        permissions=("view_node",),
        query=NodeQuery,
    )
    def list(self, request: Request) -> Response:
        query = self.validate(NodeQuery, request.query_params)
        nodes = cluster.nodes(query["namespace"])
        if self.scope.narrows(Node):
            visible = set(self.scope.rows(Node).values_list("pk", flat=True))
            nodes = [node for node in nodes if node.pk in visible]
        return Response({"results": NodeSerializer(nodes, many=True).data})
