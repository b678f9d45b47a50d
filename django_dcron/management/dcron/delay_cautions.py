"""Warn users who create runs that queue like a backfill why the runs don't start yet."""

from __future__ import annotations

from functools import cached_property

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis import cluster
from django_dcron.diagnosis.start_caution import node_cautions
from django_dcron.management.dcron.freezes import freeze_text
from django_dcron.models import Freeze, Job
from django_dcron.utils.messages import with_full_stop


class DelayCautions:
    """The cautions of several jobs. Freezes and nodes are read once."""

    def of(self, job: Job) -> list[str]:
        """Return why new runs of the job wait: a pause, freezes, or no live node."""
        cautions = []
        if job.is_paused:
            cautions.append("The job is paused: the runs start when it is resumed.")
        cautions += [
            with_full_stop(freeze_text(freeze))
            for freeze in self._freezes
            if freeze.extent.covers(job.namespace)
        ]
        return [*cautions, *node_cautions(job, self._live_namespaces)]

    @cached_property
    def _freezes(self) -> list[Freeze]:
        return list(Freeze.objects.using(alias_for(Freeze)).in_force())

    @cached_property
    def _live_namespaces(self) -> set[str]:
        return cluster.live_namespaces()
