"""Check the chains of the jobs that code declares. No database is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from django_dcron import targets
from django_dcron.checks.reporting import node_starts, with_docs_link
from django_dcron.policies.chains import JobKey, find_cycle, label_of, split_label
from django_dcron.utils.suggestions import did_you_mean


@register(Tags.compatibility)
def check_declarations(
    app_configs: Sequence[AppConfig] | None, **options: Any
) -> list[CheckMessage]:
    """Check ``after`` of the declared jobs.

    A node, and a declaration that names an unknown job, import the task modules, which may declare
    further jobs. Otherwise, the check doesn't import them, because every command would wait.
    """
    if node_starts() or any(True for _found in _unknown()):
        targets.discovery_problem()
    return [*map(with_docs_link, [*_unknown(), *_cycles()])]


def _unknown() -> Iterator[CheckMessage]:
    declared = {declaration.key for declaration in targets.declarations()}
    names = [label_of(*key) for key in declared]
    for declaration in targets.declarations():
        for label in declaration.fields.get("after", ()):
            if split_label(label) not in declared:
                near = did_you_mean(label, [name for name in names if name != str(declaration)])
                yield Warning(
                    f"@cron job {declaration}: after names {label!r}, which no code declares."
                    f"{near}",
                    hint="Correct the name. Names in other namespaces need a prefix, as in "
                    '"shop/import". If the job exists only in the database, this is no mistake.',
                    id="django_dcron.W018",
                )


def _cycles() -> Iterator[CheckMessage]:
    before = {
        JobKey(*declaration.key): [*map(split_label, declaration.fields.get("after", ()))]
        for declaration in targets.declarations()
    }
    reported: set[JobKey] = set()
    for key in before:
        if key not in reported and (way := find_cycle(before, key)):
            reported.update(way)
            path = " → ".join(label_of(*each) for each in way)
            yield Error(
                f"@cron job {label_of(*key)}: after={{{label_of(*way[-2])!r}: ...}} closes a "
                f"cycle, so the jobs would wait for each other: {path}.",
                hint="Remove one of these names from after.",
                id="django_dcron.E012",
            )
