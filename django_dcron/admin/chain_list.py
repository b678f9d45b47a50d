"""Render a chain as a nested list. Each step has its state and the outcome that starts it."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib import admin
from django.db.models import Model
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_dcron.admin.display import badge, link, state_badge
from django_dcron.diagnosis.chain_graph import ChainGraph, ChainStep
from django_dcron.diagnosis.job_state import statistics_of


def _condition(outcome: str) -> SafeString:
    """Render the outcome that the previous step must have, so that a step starts."""
    text = _("starts after: %(outcome)s") % {"outcome": outcome}
    return format_html('<span class="dcron-aside">{}</span>', text)


@dataclass(frozen=True, slots=True)
class ChainList:
    graph: ChainGraph
    current: Model
    """The run or the job whose page has the list."""
    site: admin.AdminSite
    links_jobs: bool

    def __str__(self) -> SafeString:
        more = format_html("<p>{}</p>", _("and more")) if self.graph.is_truncated else ""
        return format_html("{}{}", self._render([self.graph.first]), more)

    def _render(self, steps: list[ChainStep]) -> SafeString:
        items = (
            (
                SafeString(' aria-current="true"' if self._is_current(step) else ""),  # nosec B703
                self._name(step),
                self._state(step),
                _condition(step.on) if step.on else "",
                self._render(step.steps) if step.steps else "",
            )
            for step in steps
        )
        return format_html(
            "<ul>{}</ul>",
            format_html_join("", "<li><div{}>{} {} {}</div>{}</li>", items),
        )

    def _is_current(self, step: ChainStep) -> bool:
        return self.current == (step.run if self.graph.of_runs else step.job)

    def _name(self, step: ChainStep) -> str:
        if step.run is not None:
            return link(step.run, self.site, step.job)
        return link(step.job, self.site) if self.links_jobs else str(step.job)

    def _state(self, step: ChainStep) -> str:
        """Return the state of the run, or the last outcome of the job."""
        if self.graph.of_runs:
            return state_badge(step.run.state) if step.run else badge("none", _("No run"))
        if step.job.is_finished:
            return badge("finished", _("Finished"))
        if step.job.is_paused:
            return badge("paused", _("Paused"))
        statistics = statistics_of(step.job)
        return state_badge(statistics.last_state) if statistics and statistics.last_state else ""
