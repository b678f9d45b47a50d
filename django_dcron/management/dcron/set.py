"""``manage.py dcron set``: change fields of a job, or of several jobs.

Exit codes:

- 0: success, or the fields already have these values.
- 1: some of several jobs were refused (the others are changed), or no jobs match.
- 2: the request can't be processed, and nothing was changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import partial
from itertools import dropwhile, takewhile
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.db.models import prefetch_related_objects
from django.utils import timezone

from django_dcron import control
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.exceptions import Conflict, InvalidSchedule
from django_dcron.jobs import chains
from django_dcron.jobs.portable import quoted_json
from django_dcron.jobs.representation import (
    JOB_FIELDS,
    DocumentField,
    InvalidField,
    ValueFormat,
    portable_document,
    to_json,
    unknown_field,
)
from django_dcron.management.dcron import bulk_actions
from django_dcron.management.dcron.bulk_actions import ActionOutcome, Plan, SkippedRow, job_keys
from django_dcron.management.dcron.exits import HOW_TO_CREATE_A_JOB, usage_error
from django_dcron.management.dcron.job_edit import (
    change_texts,
    changed_values,
    edit_document,
    perform_edit,
)
from django_dcron.management.dcron.job_selection import SelectedRows, add_selection, select
from django_dcron.management.dcron.lookup import JOB_HELP, find_job
from django_dcron.management.dcron.option_values import parse_json, parse_time_option
from django_dcron.management.dcron.output import Output, add_json
from django_dcron.models import Cursor, Job
from django_dcron.schedules.sentences import replace_sentences
from django_dcron.schedules.zones import date_in
from django_dcron.targets import MASK, has_unrestored_mask, restore_secrets
from django_dcron.targets.declared_fields import field_meant_by
from django_dcron.utils.counts import number_of

HELP = (
    "Change fields of jobs. Text needs no quotes; lists and objects are JSON; durations need a "
    "unit, such as 10m. FIELD= sets an empty text, or null if the field can be null. A schedule "
    "may be an English sentence; the output shows the schedule text that is saved. All fields of a "
    "job are changed or none. A selection by pattern or option asks for confirmation. Exit codes: "
    "1 if one of several jobs couldn't be changed (the others are) or none match; 2 if the input "
    "is invalid, and nothing was changed."
)
EXAMPLES = """
set nightly-report schedule='30 4 * * MON-FRI' timezone=Europe/Berlin
set nightly-report schedule='every weekday at 9:30'
set shop/import-orders max_attempts=5 retry_backoff=30s 'tags=["billing"]'
set shop/import-orders calendar= queue=imports --dry-run
set 'feed-*' target=orders.tasks.fetch_feed --yes
"""
NOT_JSON = (ValueFormat.TEXT, ValueFormat.NAME, ValueFormat.DURATION, ValueFormat.TIME)
"""Formats whose values are JSON strings. The command line has them without quotes."""
PAUSE = ("enabled", "pause_reason", "paused_until")
SETTABLE = {
    name: field for name, field in JOB_FIELDS.items() if field.writable and name not in PAUSE
}
WITHOUT_UNIT = re.compile(r"\d+(\.\d+)?")
NULL = "null"
CHOICE = "invalid_choice"
"""The code of Django's error, which doesn't name the choices."""


def add_arguments(parser: CommandParser) -> None:
    add_selection(
        parser,
        metavar="JOB|FIELD=VALUE",
        help_text=f"a field and its new value: {', '.join(SETTABLE)}; or {JOB_HELP}",
    )
    bulk_actions.add_confirmation(parser)
    add_json(parser)


def run(command: BaseCommand, options: dict[str, Any]) -> None:
    output = Output(command, options)
    names = [*takewhile(_is_name, options["names"])]
    assignments = [*dropwhile(_is_name, options["names"])]
    if not assignments:
        raise usage_error("Nothing was changed. Add FIELD=VALUE, such as max_attempts=3.")
    selected = select(options | {"names": names}, partial(find_job, hint=HOW_TO_CREATE_A_JOB))
    now = database_now(alias_for(Job))
    if selected.by_criteria or len(selected.rows) > 1:
        _set_many(output, selected, assignments, now, options)
    else:
        _set_one(output, selected.rows[0], assignments, now, is_dry=options["dry_run"])


def _is_name(argument: str) -> bool:
    return "=" not in argument


def _set_many(
    output: Output,
    selected: SelectedRows[Job],
    assignments: Sequence[str],
    now: datetime,
    options: dict[str, Any],
) -> None:
    """Change each job. All values are checked before the first job is saved."""
    is_dry, using = options["dry_run"], alias_for(Job)
    parsed = {job.pk: _parsed(assignments, job, now) for job in selected.rows}
    if any(field.name == "name" for values in parsed.values() for field in values):
        _refuse(["name: Several jobs are selected. Rename each job with its own command."])
    differs = {job.pk: _differs(job, parsed[job.pk]) for job in selected.rows}
    changed = [job for job in selected.rows if differs[job.pk]]
    unchanged = [job for job in selected.rows if not differs[job.pk]]
    _check_values(changed, parsed)
    plan = Plan(
        [bulk_actions.action_on_job(job) for job in changed],
        "set",
        lambda jobs: _save_many(jobs, parsed, is_dry=is_dry),
        bulk_actions.JOBS_AT_ONCE,
        skipped=[
            SkippedRow(job_keys(job), str(job), "The fields already have these values.")
            for job in unchanged
        ],
    )
    if not is_dry:
        bulk_actions.perform_plan(output, plan, options, asks=selected.by_criteria)
        return
    with transaction.atomic(using=using):
        bulk_actions.perform(output, plan, summary=output.is_json)
        transaction.set_rollback(True, using=using)
    if not output.is_json:
        output.line(f"set: {number_of(len(changed), 'job')}. Nothing was changed.")


def _check_values(jobs: Sequence[Job], parsed: Mapping[int, Mapping[DocumentField, Any]]) -> None:
    """Check the values for each job. Raises ``CommandError`` with the errors of one job.

    An error that a job has already is left to ``save_many``, which refuses only that job.
    """
    changed = [copy(job) for job in jobs]
    for job in changed:
        _assign(job, parsed[job.pk])
    prefetch_related_objects(changed, "calendar", "limit")
    calendars = {job.calendar.pk for job in changed if job.calendar}
    limits = {job.limit.pk for job in changed if job.limit}
    for original, job in zip(jobs, changed, strict=True):
        try:
            # Stricter than ``save_many``, for which "a,b" is a list of one tag.
            job.clean_fields(known_calendars=calendars, known_limits=limits)
        except ValidationError as error:
            given = {field.name for field in parsed[job.pk]}
            errors = _new_errors(error, original, given)
            _refuse([f"{original}: {text}" for text in _broken_rules(errors, job)])
    relinked = [pair for pair in zip(jobs, changed, strict=True) if pair[0].after != pair[1].after]
    errors_of_links = chains.check_links_of([job for _original, job in relinked], alias_for(Job))
    for position, refusal in errors_of_links.items():
        original, job = relinked[position]
        _refuse([f"{original}: {text}" for text in _broken_rules(refusal, job)])


def _new_errors(error: ValidationError, original: Job, given: set[str]) -> ValidationError:
    """Return the errors in given fields, and those that the unchanged job doesn't have."""
    existing: set[str] = set()
    try:
        copy(original).clean_fields()
    except ValidationError as earlier:
        existing = earlier.error_dict.keys() - given
    errors = {name: each for name, each in error.error_dict.items() if name not in existing}
    return ValidationError(errors)


def _save_many(
    jobs: Sequence[Job], parsed: Mapping[int, Mapping[DocumentField, Any]], *, is_dry: bool
) -> list[ActionOutcome | Exception]:
    before = [portable_document(job) for job in jobs]
    for job in jobs:
        _assign(job, parsed[job.pk])
    refused = control.save_many(jobs, keep_going=True)
    next_at = dict(
        Cursor.objects.using(alias_for(Cursor))
        .filter(pk__in=[job.pk for job in jobs])
        .values_list("pk", "next_at")
    )
    results: list[ActionOutcome | Exception] = []
    for position, job in enumerate(jobs):
        if (error := refused.get(position)) is not None:
            results.append(_with_fields(error, job))
            continue
        changes = changed_values(before[position], portable_document(job))
        document = edit_document(changes, next_at.get(job.pk), is_dry=is_dry)
        results.append(ActionOutcome("; ".join(change_texts(changes)), document))
    return results


def _with_fields(error: Exception, job: Job) -> Exception:
    """Return the error with a text for people."""
    if isinstance(error, ValidationError):
        return ValueError(" ".join(_broken_rules(error, job)))
    return error


def _set_one(
    output: Output, job: Job, assignments: Sequence[str], now: datetime, *, is_dry: bool
) -> None:
    values = _parsed(assignments, job, now)
    perform_edit(output, job, lambda: _save(job, values), is_dry=is_dry)


def _parsed(assignments: Sequence[str], job: Job, now: datetime) -> dict[DocumentField, Any]:
    """Return the value of each given field. Raises ``CommandError`` with all errors.

    ``now`` is the instant from which relative times count, the same for all jobs.
    """
    values: dict[DocumentField, Any] = {}
    texts = dict(assignment.partition("=")[::2] for assignment in assignments)
    zone = texts.get("timezone", job.timezone)
    named: set[str] = set()
    unreadable: set[str] = set()
    problems = []
    for assignment in assignments:
        name, sign, text = assignment.partition("=")
        if not sign:
            problems.append(f"{assignment!r} isn't FIELD=VALUE, such as max_attempts=3.")
        elif name in named:
            problems.append(f"{name}: The field is given twice.")
        elif name not in SETTABLE:
            problems.append(f"{name}: {_why_not_settable(name)}")
        else:
            try:
                values[SETTABLE[name]] = _parse(SETTABLE[name], text, job, zone, now)
            except InvalidSchedule as error:
                problems.append(f"{name}: {error}")
                unreadable.add(name)
            except InvalidField as error:
                problems.append(f"{name}: {quoted_json(text)}: {error}")
                unreadable.add(name)
            except CommandError as error:
                problems.append(str(error))
                unreadable.add(name)
        named.add(name)
    if problems:
        _refuse([*problems, *_refusals(job, values, unreadable)])
    return values


def _refusals(job: Job, values: Mapping[DocumentField, Any], unreadable: set[str]) -> list[str]:
    """Return why the values are refused, apart from the unreadable fields."""
    _assign(job, values)
    try:
        job.clean_fields(exclude=unreadable)
    except ValidationError as error:
        return list(_broken_rules(error, job))
    return []


def _parse(field: DocumentField, text: str, job: Job, zone: str, now: datetime) -> Any:
    """Return the value of the job's attribute.

    ``zone`` is the job's time zone after the edit. Raises ``InvalidField``, ``InvalidSchedule`` or
    ``CommandError``.
    """
    if field.nullable and text in ("", NULL):
        return None
    if field.format is ValueFormat.TIME:
        site_zone = timezone.get_current_timezone()
        return field.read(parse_time_option(field.name, text, now, site_zone))
    if field.format is ValueFormat.DURATION and WITHOUT_UNIT.fullmatch(text) and float(text):
        raise usage_error(
            f"{field.name}: {quoted_json(text)}: The duration has no unit. Enter {text}s for "
            f"seconds, {text}m for minutes or {text}h for hours."
        )
    if field.name == "schedule":
        text = replace_sentences(text, date_in(zone, now))
    if field.format in NOT_JSON:
        return field.read(text)
    try:
        written = parse_json(field.name, text)
    except (ValueError, RecursionError):
        written = text  # the field names what it accepts
    value = field.read(written)
    if not field.confidential:
        return value
    # A masked secret, such as one that was copied from ``dcron show``, stays as it is.
    own = field.value_of(job)
    if has_unrestored_mask(value := restore_secrets(value, own), own):
        raise usage_error(
            f"{job}: {field.name}: {MASK} stands for a secret that the job doesn't have there. "
            "Enter the secret."
        )
    return value


def _why_not_settable(name: str) -> str:
    if name in PAUSE or field_meant_by(name) in PAUSE:
        return "To pause or resume the job, use manage.py dcron pause or resume."
    if name in JOB_FIELDS:
        return "The field is read-only."
    error = unknown_field(name, SETTABLE)
    return str(error) if error.params else f"{error} Fields: {', '.join(SETTABLE)}."


def _save(job: Job, values: Mapping[DocumentField, Any]) -> None:
    """Save the job if the values differ. Raises ``CommandError`` if they are refused."""
    if not _differs(job, values):
        return
    _assign(job, values)
    try:
        job.clean_fields()  # stricter than ``save``, for which "a,b" is a list of one tag
        control.save(job)
    except Conflict as error:
        raise usage_error(f"Nothing was changed. {error}") from None
    except ValidationError as error:
        _refuse(list(_broken_rules(error, job)))
        raise


def _assign(job: Job, values: Mapping[DocumentField, Any]) -> None:
    for field, value in values.items():
        setattr(job, field.attname, value)


def _broken_rules(error: ValidationError, job: Job) -> Iterator[str]:
    """Yield the errors with their fields and values, without secrets."""
    for name, errors in error.update_error_dict({}).items():
        field = JOB_FIELDS.get(name)
        label = "" if name == NON_FIELD_ERRORS else f"{name}: "
        if field is not None:
            label += f"{quoted_json(field.redacted(to_json(field.value_of(job))))}: "
        for each in errors:
            choices = field.model_field.flatchoices if field and each.code == CHOICE else ()
            allowed = f" Allowed: {', '.join(str(value) for value, _label in choices)}."
            yield f"{label}{' '.join(each.messages)}{allowed if choices else ''}"


def _refuse(problems: Sequence[str]) -> None:
    """Raise ``CommandError`` if there are problems."""
    if problems:
        raise usage_error("\n".join(["Nothing was changed.", *problems]))


def _differs(job: Job, values: Mapping[DocumentField, Any]) -> bool:
    return any(not field.is_same(field.value_of(job), value) for field, value in values.items())
