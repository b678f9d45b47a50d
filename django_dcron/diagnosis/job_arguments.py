"""Check whether this process knows the targets of stored jobs, and accepts their arguments.

A deploy that removes a target or renames a parameter doesn't change the jobs that were imported or
created by people.
"""

from __future__ import annotations

import json
from functools import lru_cache

from django.utils import translation
from django.utils.translation import gettext as _

from django_dcron import targets
from django_dcron.exceptions import InvalidArguments, UnknownTarget
from django_dcron.models import Job
from django_dcron.targets import TargetKind

ALLOWING_SETTINGS = {TargetKind.COMMAND: "DCRON_COMMANDS", TargetKind.SHELL: "DCRON_SHELL"}
"""The settings that allow the arguments of targets that aren't Python functions."""


class ArgumentsChecker:
    """Checks the arguments of many jobs. Equal calls of one target are checked once."""

    def __init__(self) -> None:
        self._why_rejected = lru_cache(maxsize=1000)(_why_rejected)

    def why_rejected(self, job: Job) -> str:
        """Return why runs of the job fail; empty if the target accepts its arguments.

        Also empty if this process doesn't know the target.
        """
        return self._why_rejected(job.target, json.dumps([job.args, job.kwargs]))


def _why_rejected(key: str, arguments: str) -> str:
    args, kwargs = json.loads(arguments)
    try:
        targets.get(key).check_arguments(args, kwargs)
    except InvalidArguments as error:
        return f"{error.field}: {error}"
    except Exception:  # an unknown target, or an error of a command's parser, the project's code
        return ""
    return ""


def unknown_target_problem(key: str) -> str:
    """Return that runs with the target fail, and the remedy; empty if this process knows it."""
    try:
        targets.get(key)
    except UnknownTarget as error:
        text = _("Runs fail: %(error)s Register the target, or correct or pause the job.")
        return text % {"error": error.translate(translation)}
    return ""


def advice_on_arguments(job: Job) -> str:
    """Return how to make the job's arguments fit its target, which this process knows."""
    setting = ALLOWING_SETTINGS.get(targets.get(job.target).kind)
    if setting:
        return f"Correct the job's arguments, or allow them in {setting}."
    if job.declared is not None:
        return (
            "Correct the arguments in its @cron if they are still wrong there, and run "
            "manage.py dcron sync."
        )
    return "Correct the job's arguments, or the parameters of its target."
