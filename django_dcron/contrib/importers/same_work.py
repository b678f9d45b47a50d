"""Find the jobs that do the same work as new entries of a source.

The work is the target, its arguments, the schedule and the time zone, within a namespace.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from django_dcron.contrib.importers.entry_plans import ComparisonOptions, with_values
from django_dcron.contrib.importers.origins import EntryMatch, imported_jobs_of, stored_source
from django_dcron.contrib.importers.source_contents import CRONTAB, SourceEntry
from django_dcron.db.routing import alias_for
from django_dcron.jobs.pausing import is_left_to_source
from django_dcron.jobs.representation import portable_document
from django_dcron.models import Job
from django_dcron.targets.shadow import PREFIX


def with_renamed(
    matches: list[EntryMatch], namespace: str, options: ComparisonOptions
) -> list[EntryMatch]:
    """Match new entries with the jobs of entries that are gone and did the same work.

    An entry whose job was deleted here, or whose name a job of another source has, isn't new. Of
    several such entries or jobs, it's unknown which belong together. None of them match. A job that
    waits for the handover matches only if a new job would wait, too.
    """
    works = {
        number: _work_of_entry(each.entry, namespace, options)
        for number, each in enumerate(matches)
        if each.entry.values and not _is_known(each)
    }
    if not works:
        return matches
    matched = {each.job.pk for each in matches if each.job is not None}
    gone = [job for job in imported_jobs_of(options.source) if job.pk not in matched]
    if not (options.disabled or options.shadow or options.take_over or options.new_jobs_wait):
        gone = [job for job in gone if not is_left_to_source(job)]
    jobs = defaultdict(list)
    for gone_job in gone:
        for work in {*_works_of(gone_job)}:
            jobs[work].append(gone_job)
    times = Counter(works.values())
    renamed = {
        number: jobs[work][0]
        for number, work in works.items()
        if times[work] == 1 and len(jobs[work]) == 1
    }
    taken = Counter(job.pk for job in renamed.values())
    return [
        replace(
            each,
            entry=replace(each.entry, name=job.name, namespace=job.namespace),
            job=job,
        )
        if (job := renamed.get(number)) and taken[job.pk] == 1
        else each
        for number, each in enumerate(matches)
    ]


def _is_known(match: EntryMatch) -> bool:
    jobs = (match.job, match.name_owner, match.duplicate)
    return match.deletion is not None or any(job is not None for job in jobs)


def with_duplicates(
    matches: list[EntryMatch], namespace: str, options: ComparisonOptions
) -> list[EntryMatch]:
    """Add the jobs of other crontabs that run, or will run, the same command at the same times.

    A crontab that was saved to another file would otherwise create each renamed or edited job
    again.
    """
    jobs = Job.objects.using(alias_for(Job)).filter(import_source__startswith=CRONTAB)
    others = {
        work: job
        for job in jobs.exclude(import_source=stored_source(options.source)).order_by("-pk")
        if job.enabled or job.awaits_handover
        for work in _works_of(job)
    }
    return [
        replace(each, duplicate=others.get(_work_of_entry(each.entry, namespace, options)))
        if each.job is None and each.entry.values
        else each
        for each in matches
    ]


def _works_of(job: Job) -> Iterator[str]:
    """Yield the work of the job as it is now, and as it was imported."""
    yield _work(job.namespace, portable_document(job))
    if imported := (job.imported or {}).get("values"):
        yield _work(job.namespace, imported)


def _work_of_entry(entry: SourceEntry, namespace: str, options: ComparisonOptions) -> str:
    job = with_values(Job(), entry.values, options)
    return _work(entry.namespace or namespace, portable_document(job))


def _work(namespace: str, values: Mapping[str, Any]) -> str:
    """Return the work of a job with these values. A shadow has the work of its target."""
    target = str(values["target"]).removeprefix(PREFIX)
    what = [target, values.get("args", []), values.get("kwargs", {})]
    return json.dumps([namespace, *what, values["schedule"], values["timezone"]], sort_keys=True)
