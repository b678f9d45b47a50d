"""Find the job, run or namespace named on the command line."""

from __future__ import annotations

import re
import shlex

from django.core.management.base import CommandError

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.run_ids import id_range
from django_dcron.jobs.audit.entries import actor_text
from django_dcron.jobs.restoring import deleted_row_of, deletion_of, restored_job_of
from django_dcron.jobs.sync import plan
from django_dcron.management.dcron.exits import usage_error
from django_dcron.management.dcron.output import time_text
from django_dcron.models import AuditEntry, Job, Node, Run
from django_dcron.models.job import JobQuerySet
from django_dcron.policies.job_labels import DEFAULT_NAMESPACE, label_of, split_label
from django_dcron.targets import declarations
from django_dcron.utils.suggestions import did_you_mean, similar_names

JOB_HELP = "job: NAME, NAMESPACE/NAME or its number"

SHORTEST_ID = 8
ID_SHOWN = 23
"""Characters of a run's id in a table: its millisecond and 26 random bits."""
RUN_HELP = (
    "run: its id, or its first characters if no other run has them, such as the "
    f"{ID_SHOWN} characters that history prints"
)
CANDIDATES = 5
NAMES_COMPARED = 20_000


def find_job(text: str, *, with_deleted: bool = False, hint: str = "") -> Job:
    """Return the job, with its cursor and statistics. Raises ``CommandError``.

    A name takes precedence over a number. A name alone prefers the namespace ``default`` over
    others. ``hint`` is a last line of the error if there is no such job.
    """
    jobs = _jobs(with_deleted=with_deleted)
    if (job := _named_job(text, jobs)) is None:
        raise _unknown_job(text, jobs, hint)
    return job


def find_job_or_deletion(text: str) -> Job | AuditEntry:
    """Return the job, or else the audit entry of its deletion. Raises ``CommandError``.

    The text is ambiguous if a deleted job has the whole name, and a job in another namespace has
    the same name.
    """
    jobs = _jobs()
    job, deletion = _named_job(text, jobs), _deletion_of(text)
    if job is None:
        if deletion is None:
            raise _unknown_job(text, jobs)
        return deletion
    namesake = deletion is not None and deletion.label == _label_of(text) != str(job)
    if deletion is not None and namesake and restored_job_of(deletion) is None:
        names = f"{_full_label(deletion.label)} (deleted) and {_full_name(job)}"
        raise usage_error(f"Several jobs are named {text!r}: {names}.")
    return job


def _jobs(*, with_deleted: bool = False) -> JobQuerySet:
    manager = Job.with_deleted if with_deleted else Job.objects
    return manager.using(alias_for(Job)).select_related("cursor", "statistics", "calendar")


def _named_job(text: str, jobs: JobQuerySet) -> Job | None:
    """Return the job. Raises ``CommandError`` if several jobs have the name."""
    namespace, slash, name = text.rpartition("/")
    exact = jobs.filter(namespace=namespace if slash else DEFAULT_NAMESPACE, name=name).first()
    if exact:
        return exact
    elsewhere = (
        [] if slash else list(jobs.filter(name=name).order_by("namespace")[: CANDIDATES + 1])
    )
    if len(elsewhere) == 1:
        return elsewhere[0]
    if elsewhere:
        names = _join_names([_full_name(job) for job in elsewhere])
        raise usage_error(f"Several jobs are named {text!r}: {names}.")
    return jobs.filter(pk=int(text)).first() if re.fullmatch(r"[0-9]{1,18}", text) else None


def _deletion_of(text: str) -> AuditEntry | None:
    return deletion_of(_label_of(text))


def _label_of(text: str) -> str:
    namespace, _, name = text.rpartition("/")
    return label_of(namespace or DEFAULT_NAMESPACE, name)


def _unknown_job(text: str, jobs: JobQuerySet, hint: str = "") -> CommandError:
    return usage_error(f"Unknown job {text!r}{_hint(text, jobs)}" + (f"\n{hint}" if hint else ""))


def find_run(text: str) -> Run:
    """Return the only run whose id begins with ``text``, with its job."""
    digits = text.replace("-", "").lower()
    if not re.fullmatch(r"[0-9a-f]{1,32}", digits):
        raise usage_error(
            f"{text!r} isn't a run id (allowed: hexadecimal digits, such as "
            f"019a9f3c-5b7e-7123-8abc).{_runs_of_job(text)}"
        )
    if len(digits) < SHORTEST_ID:
        raise usage_error(
            f"{text!r} is too short for a run id (at least {SHORTEST_ID} characters)."
            f"{_runs_of_job(text)}"
        )
    runs = Run.objects.using(alias_for(Run)).select_related("job")
    found = list(runs.filter(pk__range=id_range(digits)).order_by("pk")[: CANDIDATES + 1])
    if len(found) == 1:
        return found[0]
    if found:
        lines = [f"  {run.pk}  {run}" for run in found[:CANDIDATES]]
        lines += ["  ..."] if len(found) > CANDIDATES else []
        raise usage_error(
            "\n".join([f"Several run ids start with {text!r}:", *lines])
            + f"\nUse the whole id or its first {ID_SHOWN} characters. The first 12 digits are "
            "only the time at which the run was created."
        )
    raise usage_error(
        f"Unknown run {text!r}. It may have been deleted. To list runs: manage.py dcron history JOB"
    )


def find_job_or_run(text: str) -> Job | Run:
    """Return a job if ``text`` names one, else the run whose id begins with ``text``.

    The job may be deleted.
    """
    try:
        return find_job(text, with_deleted=True)
    except CommandError as error:
        if not re.fullmatch(r"[0-9a-fA-F-]+", text):
            raise
        if len(text) < SHORTEST_ID:
            raise usage_error(
                f"{text!r} is too short for a run id (at least {SHORTEST_ID} characters). {error}"
            ) from None
    return find_run(text)


def require_namespace(namespace: str, *, with_deleted: bool = False) -> None:
    """Raise ``CommandError`` for a namespace that has neither jobs nor nodes. Empty is allowed.

    A command about nothing would succeed, although the namespace is probably a typo.
    """
    if not namespace:
        return
    manager = Job.with_deleted if with_deleted else Job.objects
    jobs, nodes = manager.using(alias_for(Job)).order_by(), Node.objects.using(alias_for(Node))
    of_jobs = jobs.values_list("namespace", flat=True).distinct()
    existing = sorted({*of_jobs, *nodes.values_list("namespace", flat=True)} - {""})
    if namespace not in existing:
        raise usage_error(
            f"--namespace {namespace!r} has neither jobs nor nodes."
            f"{did_you_mean(namespace, existing)} Namespaces with jobs or nodes: "
            f"{', '.join(existing) or 'none'}."
        )


def _runs_of_job(text: str) -> str:
    """Return how to list the runs of the job that ``text`` names; empty if it names none."""
    try:
        job = find_job(text, with_deleted=True)
    except CommandError:
        return ""
    return f" To list the runs of job {job}: manage.py dcron history {shlex.quote(str(job))}"


def _hint(text: str, jobs: JobQuerySet) -> str:
    """Return the remedy: a sync, or jobs whose names contain the text, or similar names."""
    if deletion := _deletion_of(text):
        return _deletion_hint(text, deletion)
    if text in map(str, declarations()):
        missing = ": code declares it, but the database doesn't have it yet"
        if refused := next((each for each in plan() if each.job == text and each.is_problem), None):
            return f"{missing}. dcron sync refuses it: {'; '.join(refused.details)}"
        return f"{missing}. Run manage.py dcron sync, or restart the nodes."
    if re.match(r"[A-Za-z_]\w*=", text):
        return ". To pass arguments to a run: --kwargs '{\"days\": 30}'"
    _, _, name = text.rpartition("/")
    alike = (
        list(jobs.filter(name__icontains=name).order_by("namespace", "name")[:CANDIDATES])
        if name
        else []
    )
    if not alike:
        names = jobs.order_by().values_list("name", flat=True)[:NAMES_COMPARED]
        alike = list(jobs.filter(name__in=similar_names(name, names, most=CANDIDATES))[:CANDIDATES])
    if not alike:
        return ". To list all jobs: manage.py dcron list"
    return f". Did you mean {_join_names([str(job) for job in alike], ' or ')}?"


def _deletion_hint(text: str, deletion: AuditEntry) -> str:
    """Return who deleted the job, and what can be done.

    For a number, the commands have the number, because another job may have the name.
    """
    is_number = label_of(*split_label(text)) != deletion.label
    label = text if is_number else shlex.quote(_full_label(deletion.label))
    hint = f": {actor_text(deletion)} deleted it at {time_text(deletion.at)}. "
    if deletion.label in map(str, declarations()):
        hint += (
            "Code still declares it, so the next sync or start of a node creates it again with the "
            "values of the code. "
        )
    if restored := restored_job_of(deletion):
        hint += f"That was undone: the restored job is {restored.label} ({restored.number})"
    else:
        hint += f"To undo that: manage.py dcron revert {label}"
    hint += f". To show its changes: manage.py dcron audit {label}"
    if row := deleted_row_of(deletion):
        hint += f". To show its runs: manage.py dcron history {shlex.quote(str(row))}"
    return hint


def _join_names(names: list[str], last: str = ", ") -> str:
    """Join the first few names."""
    if len(names) > CANDIDATES:
        return ", ".join([*names[:CANDIDATES], "..."])
    return last.join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _full_name(job: Job) -> str:
    return f"{job.namespace}/{job.name}"


def _full_label(label: str) -> str:
    return "/".join(split_label(label))
