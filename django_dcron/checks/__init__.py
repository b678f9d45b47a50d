"""System checks: each problem has a stable id and a hint with the fix.

========  ======================================================================================
E001      a DCRON setting has the wrong type or is out of range
E002      USE_TZ is off, or the database stores local times because of its TIME_ZONE
E003      the lock's cache is missing or isn't a django-redis cache
E004      runs are dispatched to Celery, but there is no Celery app
E005      a dotted path in the settings can't be imported
E006      Celery's broker URL has no transport
E007      DCRON_ALERTS has an invalid rule
E008      the Healthchecks middleware is on, but DCRON_HEALTHCHECKS_URL is empty
E009      runs are dispatched to Django's tasks, which this Django doesn't have
E010      the configured backend of Django's tasks is missing or can't be created
E011      the database isn't PostgreSQL, MariaDB or SQLite
E012      jobs declared in code run after each other in a cycle
E013      a job declared in code runs after a job that doesn't exist (with ``check --database``)
I001      the stored jobs weren't checked: migrations aren't applied (with ``check --database``)
W001      the configured worker pool can't terminate a run
W002      SQLite doesn't take its write lock at the start of a transaction
W003      a job's target is unknown or doesn't accept its arguments (with ``check --database``)
W004      a job's schedule or time zone is invalid (with ``check --database``)
W005      a setting that starts with DCRON doesn't exist
W006      DCRON_COMMANDS allows a command or argument that doesn't exist or can't be loaded
W007      the admin's pages don't refresh themselves, because django_htmx isn't installed
W008      DCRON_KEEP_FAILED_FOR is shorter than DCRON_KEEP_FOR
W009      a job's alert rules are invalid (with ``check --database``)
W010      a calendar is invalid (with ``check --database``)
W011      the configured backend of Django's tasks has no workers
W012      a job names a queue that isn't allowed (with ``check --database``)
W013      no node can start: one or more of E002 to E004, E006 and E009 to E011
W014      Celery's task_always_eager is on, which doesn't apply to runs
W015      Celery's broker is in memory, so no worker gets a run
W016      DCRON_SHELL has a word that contains "{}", which isn't replaced
W017      django_dcron is after the admin or its theme, so the admin's index lacks the jobs' state
W018      a job declared in code runs after a job that no code declares
W019      a cron.py in the settings' package or beside it is in no app of INSTALLED_APPS
W020      runs are dispatched to Celery, but the project sets no broker
W021      the function or task of a declared job doesn't accept the job's arguments
W022      an alert channel needs the package apprise, which isn't installed
W023      DCRON_AUTOSTART executes runs in web processes, though the project has a Celery app
W024      a job declared in code calls the function of a Celery task, not the task
W025      the URL of an alert channel isn't supported (with ``check --database``)
W026      some task modules can't be imported, so the jobs that they declare aren't checked
W027      sync refuses a job declared in code (with ``check --database``)
========  ======================================================================================

E002 to E004, E006 and E009 to E011 are errors only where a node starts (``as_node_start``). Every
other command reports them as W013, so that tests, migrations and builds need no broker and no
Redis. ``migrate`` and ``check --database`` report E011 as W013. If the project has set up neither
Redis nor Celery, E003 and E004 are reported only where a node starts. Tests report nothing about
the services that nodes need, unless a test starts a node: the lock, Celery and Django's tasks.
"""

from __future__ import annotations

from django_dcron.checks.alert_channels import check_alert_channels
from django_dcron.checks.database import check_database
from django_dcron.checks.declared import check_declarations, check_declarations_in_database
from django_dcron.checks.jobs import check_jobs
from django_dcron.checks.reporting import as_node_start
from django_dcron.checks.settings import check_settings

__all__ = [
    "as_node_start",
    "check_alert_channels",
    "check_database",
    "check_declarations",
    "check_declarations_in_database",
    "check_jobs",
    "check_settings",
]
