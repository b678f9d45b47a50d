"""The warnings of the entries of ``dcron import``: beside their jobs, or once for many jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from django_dcron.contrib.importers.entry_plans import DIFFERENCES, PAUSE, PROBLEMS, EntryPlan
from django_dcron.contrib.importers.source_contents import PendingAction
from django_dcron.management.dcron.output import WARNING, Output
from django_dcron.management.dcron.progress_bar import ProgressBar
from django_dcron.targets.shadow import PREFIX

NAMED = 3
"""The maximum number of jobs that a warning of several jobs names.

If no more jobs have a warning, it is shown beside each of them.
"""

SWITCHED = {"target", "starts_at", *PAUSE}
"""Fields that change when a job starts to do the work of its entry."""


class EntryWarnings:
    """Shows the warnings of ``plans``, the plans of one list of the output."""

    def __init__(self, plans: Iterable[EntryPlan]) -> None:
        jobs = Counter(warning for plan in plans for warning in {*_warnings_to_show(plan)})
        self._groups: dict[str, list[str]] = {
            warning: [] for warning, number in jobs.items() if number > NAMED
        }

    def show(self, out: Output | ProgressBar, plan: EntryPlan) -> None:
        """Show the warnings of a plan, except those of many jobs."""
        for warning in dict.fromkeys(_warnings_to_show(plan)):
            if warning in self._groups:
                self._groups[warning].append(str(plan))
            else:
                out.line(f"! {plan}: {warning}", WARNING)

    def show_groups(self, out: Output) -> None:
        """Show each warning of many jobs once, with the names of some of the shown plans."""
        for warning, names in self._groups.items():
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            if names:
                out.line(f"! {', '.join(names[:NAMED])}{more}: {warning}", WARNING)


def number_left_out(plans: Iterable[EntryPlan]) -> int:
    return sum(len(plan.entry.warnings) - len(_warnings_to_show(plan)) for plan in plans)


def _warnings_to_show(plan: EntryPlan) -> Sequence[str]:
    """Return all warnings of an entry that is new or has changed, otherwise the pending ones."""
    if plan.outcome in PROBLEMS or (plan.outcome in DIFFERENCES and not _is_switch(plan)):
        return plan.entry.warnings
    return [warning for warning in plan.entry.warnings if isinstance(warning, PendingAction)]


def _is_switch(plan: EntryPlan) -> bool:
    """Return whether the change only enables or pauses the job, or ends its shadow."""
    was, now = plan.changes.get("target", ("", ""))
    switched = {*plan.changes}
    return (
        bool(switched & {"target", "enabled"})
        and switched <= SWITCHED
        and was.removeprefix(PREFIX) == now.removeprefix(PREFIX)
    )
