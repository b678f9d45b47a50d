"""Check the settings. Every command of Django runs these checks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.management import get_commands
from django.db import connections
from django.utils.module_loading import import_string

from django_dcron.checks.database import check_database_at_node_start
from django_dcron.checks.reporting import (
    merge_start_problems,
    node_start_problem,
    settings_section,
    with_docs_link,
    without_secrets,
)
from django_dcron.checks.services import check_services
from django_dcron.conf import ARGUMENTS_PLACEHOLDER, Settings, settings
from django_dcron.db.support import time_zone_problem
from django_dcron.policies.alerting import InvalidRule, read_rules
from django_dcron.targets import commands
from django_dcron.utils.docs_links import with_link
from django_dcron.utils.suggestions import did_you_mean

_WITH_ADMIN_INDEX = {"django.contrib.admin", "unfold", "jazzmin", "grappelli"}
"""The admin and its themes, whose ``admin/index.html`` would replace this package's."""


@register(Tags.compatibility)
def check_settings(app_configs: Sequence[AppConfig] | None, **options: Any) -> list[CheckMessage]:
    value_messages = [*_check_values(), *_check_names()]
    if any(message.is_serious() for message in value_messages):
        return [*map(with_docs_link, value_messages)]  # The other checks read the settings.
    service_messages = [
        *_check_time_zones(),
        *check_services(),
        *check_database_at_node_start(),
        *_check_paths(),
        *_check_commands(),
        *_check_shell(),
        *_check_alerts(),
        *_check_check_ins(),
        *_check_sqlite(),
        *_check_admin(),
        *_check_order(),
        *_check_retention(),
    ]
    return merge_start_problems(
        [
            *map(with_docs_link, value_messages),
            *map(with_docs_link, map(without_secrets, service_messages)),
        ]
    )


def _check_values() -> Iterator[CheckMessage]:
    for setting in Settings.all():
        if problem := setting.problem():
            near = did_you_mean(str(getattr(django_settings, setting.name)), setting.names)
            yield Error(
                f"{problem}{near}",
                hint=with_link("Correct the value.", settings_section(setting.name)),
                id="django_dcron.E001",
            )


def _check_names() -> Iterator[CheckMessage]:
    known = [setting.name for setting in Settings.all()]
    for name in dir(django_settings):
        if name.startswith("DCRON_") and name not in known:
            near = did_you_mean(name, known, least=0.8)  # All names have the same prefix.
            yield Warning(
                f"Unknown setting {name}.{near}",
                hint="Correct the name, or remove the setting. It has no effect.",
                id="django_dcron.W005",
            )


def _check_time_zones() -> Iterator[CheckMessage]:
    from django_dcron.db.routing import alias_for
    from django_dcron.models import Job

    if problem := time_zone_problem(alias_for(Job)):
        yield node_start_problem(
            "E002",
            f"{problem.setting}, so the database would store local times, some of which occur "
            f"twice a year. {problem.consequence}",
            problem.remedy,
        )


def _check_paths() -> Iterator[CheckMessage]:
    paths = [("DCRON_MIDDLEWARE", path) for path in settings.MIDDLEWARE]
    paths += [("DCRON_LOCK", settings.LOCK)] if "." in settings.LOCK else []
    paths += [("DCRON_DISPATCHER", settings.DISPATCHER)] if "." in settings.DISPATCHER else []
    paths += [("DCRON_REST_QUERYSET", settings.REST_QUERYSET)] if settings.REST_QUERYSET else []
    for name, path in paths:
        try:
            import_string(path)
        except ImportError as error:
            yield Error(
                f"{name}: {path!r} can't be imported: {error}",
                hint="Correct the dotted path.",
                id="django_dcron.E005",
            )


def _check_commands() -> Iterator[CheckMessage]:
    known = get_commands()
    for name in settings.COMMANDS:
        if name not in known:
            yield Warning(
                "DCRON_COMMANDS: unknown management command "
                f"{name!r}.{did_you_mean(name, list(known))}",
                hint="Correct the name. A job that runs this command would fail.",
                id="django_dcron.W006",
            )
        elif allowed := commands.allowed_arguments(name):
            yield from _check_arguments_of(name, allowed)


def _check_shell() -> Iterator[CheckMessage]:
    for name, argv in settings.SHELL.items():
        if any(ARGUMENTS_PLACEHOLDER in word and word != ARGUMENTS_PLACEHOLDER for word in argv):
            # The words may contain secrets.
            yield Warning(
                f'DCRON_SHELL: a word of {name!r} contains "{{}}" beside other characters, so it '
                "isn't replaced by a job's arguments.",
                hint='Make "{}" a separate word. Each argument of a job then becomes one word.',
                id="django_dcron.W016",
            )


def _check_arguments_of(command: str, allowed: Collection[str]) -> Iterator[CheckMessage]:
    try:
        names = commands.argument_names(commands.load_command(command))
    except Exception as error:  # the command and its parser are the project's code
        yield Warning(
            f"DCRON_COMMANDS: the command {command!r} can't be loaded: "
            f"{type(error).__name__}: {error}",
            hint="Correct the command. A job that runs it would fail.",
            id="django_dcron.W006",
        )
        return
    for name in allowed:
        if name not in names:
            yield Warning(
                f"DCRON_COMMANDS: the command {command!r} has no argument "
                f"{name!r}.{did_you_mean(name, names)}",
                hint="List options as typed on the command line (--indent), and positional "
                "arguments and subcommands by name.",
                id="django_dcron.W006",
            )


def _check_alerts() -> Iterator[CheckMessage]:
    try:
        read_rules(settings.ALERTS, settings.ALERT_CHANNELS, of_job=False)
    except InvalidRule as error:
        yield Error(
            f"DCRON_ALERTS: {error}.",
            hint="Correct the rule. Until then, no alerts are sent for DCRON_ALERTS.",
            id="django_dcron.E007",
        )
    for name, channel in settings.ALERT_CHANNELS.items():
        if channel.get("apprise") and find_spec("apprise") is None:
            yield Warning(
                f"DCRON_ALERT_CHANNELS: {name!r} needs the package apprise, which isn't installed, "
                "so its alerts aren't sent.",
                hint='Install it: pip install "django-dcron[alerts]"',
                id="django_dcron.W022",
            )


def _check_check_ins() -> Iterator[CheckMessage]:
    path = "django_dcron.contrib.checkins.check_in_healthchecks"
    if path in settings.MIDDLEWARE and not settings.HEALTHCHECKS_URL:
        yield Error(
            "DCRON_MIDDLEWARE contains check_in_healthchecks, but DCRON_HEALTHCHECKS_URL "
            "is empty, so no check-ins are sent.",
            hint="Set DCRON_HEALTHCHECKS_URL to the ping URL with the project's ping key, "
            "or remove the middleware.",
            id="django_dcron.E008",
        )


def _check_sqlite() -> Iterator[CheckMessage]:
    """Check the database of django-dcron's tables only."""
    from django_dcron.db.routing import alias_for
    from django_dcron.models import Job

    alias = alias_for(Job)
    connection = connections[alias]
    mode = str(connection.settings_dict.get("OPTIONS", {}).get("transaction_mode") or "")
    if connection.vendor == "sqlite" and mode.upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield Warning(
            f"The SQLite database {alias!r} takes its write lock only at the first write of "
            "a transaction, which can fail if several processes write.",
            hint='Set OPTIONS = {"transaction_mode": "IMMEDIATE", "timeout": 20}.',
            id="django_dcron.W002",
        )


def _check_admin() -> Iterator[CheckMessage]:
    if apps.is_installed("django.contrib.admin") and not apps.is_installed("django_htmx"):
        yield Warning(
            "django_htmx is not installed, so the admin's pages don't refresh "
            "automatically and show no previews.",
            hint='Add "django_htmx" to INSTALLED_APPS. It serves the script that these pages need.',
            id="django_dcron.W007",
        )


def _check_order() -> Iterator[CheckMessage]:
    names = [app.name for app in apps.get_app_configs()]
    earlier = names[: names.index("django_dcron")]
    if first := next((name for name in earlier if name in _WITH_ADMIN_INDEX), None):
        yield Warning(
            f"django_dcron is after {first} in INSTALLED_APPS, so the admin's start "
            "page doesn't show the state of the jobs.",
            hint=f'Move "django_dcron" before "{first}".',
            id="django_dcron.W017",
        )


def _check_retention() -> Iterator[CheckMessage]:
    if settings.KEEP_FAILED_FOR < settings.KEEP_FOR:
        yield Warning(
            "DCRON_KEEP_FAILED_FOR is shorter than DCRON_KEEP_FOR, so failed runs are kept "
            "for DCRON_KEEP_FOR.",
            hint="Set DCRON_KEEP_FAILED_FOR to at least DCRON_KEEP_FOR.",
            id="django_dcron.W008",
        )
