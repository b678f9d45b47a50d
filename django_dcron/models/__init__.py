"""The tables: fields, constraints, validation, and querysets named by state."""

from django_dcron.models.alert import Alert
from django_dcron.models.alert_check import AlertCheck
from django_dcron.models.attempt import Attempt
from django_dcron.models.audit_entry import AuditAction, AuditEntry, AuditKind, Via
from django_dcron.models.calendar import Calendar
from django_dcron.models.cursor import Cursor
from django_dcron.models.dashboard import Dashboard
from django_dcron.models.definition import Definition
from django_dcron.models.deleted_import import DeletedImport
from django_dcron.models.deletion import Deletion
from django_dcron.models.freeze import Freeze
from django_dcron.models.incident import Incident
from django_dcron.models.job import Job
from django_dcron.models.lease import LockLease
from django_dcron.models.limit import Limit, LimitPlace, LimitStart
from django_dcron.models.link import Link
from django_dcron.models.node import Node
from django_dcron.models.run import Run
from django_dcron.models.saved_filter import SavedFilter
from django_dcron.models.statistics import PendingCount, Statistics

__all__ = [
    "Alert",
    "AlertCheck",
    "Attempt",
    "AuditAction",
    "AuditEntry",
    "AuditKind",
    "Calendar",
    "Cursor",
    "Dashboard",
    "Definition",
    "DeletedImport",
    "Deletion",
    "Freeze",
    "Incident",
    "Job",
    "Limit",
    "LimitPlace",
    "LimitStart",
    "Link",
    "LockLease",
    "Node",
    "PendingCount",
    "Run",
    "SavedFilter",
    "Statistics",
    "Via",
]
