"""The targets of jobs: Celery and Django tasks, ``@cron`` functions, management and shell commands.

The settings decide which commands are allowed. Text typed into the admin is never imported or
executed unless it names a registered target. This package imports no models, because the models use
it to validate targets.
"""

from django_dcron.targets.base import Invocation, Target, TargetKind
from django_dcron.targets.declaration import (
    Declaration,
    cron,
    declarations,
    declared_for,
    isolated_registry,
    key_of,
    schedule_advice,
)
from django_dcron.targets.queues import allowed_queues, check_queue, is_reserved
from django_dcron.targets.redaction import (
    MASK,
    has_unrestored_mask,
    redact_changed_secrets,
    redact_secrets,
    restore_secrets,
)
from django_dcron.targets.registry import (
    available,
    check_arguments,
    discovery_problem,
    get,
    is_known,
)
from django_dcron.targets.shell import ShellFailed

__all__ = [
    "MASK",
    "Declaration",
    "Invocation",
    "ShellFailed",
    "Target",
    "TargetKind",
    "allowed_queues",
    "available",
    "check_arguments",
    "check_queue",
    "cron",
    "declarations",
    "declared_for",
    "discovery_problem",
    "get",
    "has_unrestored_mask",
    "is_known",
    "is_reserved",
    "isolated_registry",
    "key_of",
    "redact_changed_secrets",
    "redact_secrets",
    "restore_secrets",
    "schedule_advice",
]
