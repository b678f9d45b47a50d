"""Check that the sync accepts the jobs that this process's code declares."""

from __future__ import annotations

from django_dcron import targets
from django_dcron.diagnosis.doctor.findings import Code, Findings, Subject
from django_dcron.diagnosis.doctor.window import Window
from django_dcron.jobs import sync
from django_dcron.utils.messages import with_full_stop


def examine_declarations(window: Window, findings: Findings) -> None:
    """Report the declared jobs that the sync refuses. Nothing is written."""
    targets.discovery_problem()  # imports the task modules, which declare jobs
    declared = {declaration.key for declaration in targets.declarations()}
    for change in sync.plan() if declared else ():
        namespace, _name = change.key
        if change.is_problem and change.key in declared and window.namespace in ("", namespace):
            findings.add(
                Code.DECLARATION_REFUSED,
                Subject("job", name=change.job),
                "Code declares the job, but the sync refuses it, so the job isn't created or "
                f"updated. {with_full_stop('; '.join(change.details))}",
                advice="Correct the declaration, and run manage.py dcron sync.",
            )
