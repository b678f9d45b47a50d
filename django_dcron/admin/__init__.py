"""Register the admin classes of all models, including the dashboard and the audit log.

Invariants:

- Users edit jobs, calendars and limits, and add freezes. All other rows are read-only, except for
  actions.
- Every write goes through ``control``, never through a model's ``save``.
"""

from django_dcron.admin.alert import AlertAdmin
from django_dcron.admin.audit_entry import AuditEntryAdmin
from django_dcron.admin.calendar import CalendarAdmin
from django_dcron.admin.dashboard import DashboardAdmin
from django_dcron.admin.freeze import FreezeAdmin
from django_dcron.admin.incidents.admin import IncidentAdmin
from django_dcron.admin.jobs.admin import JobAdmin
from django_dcron.admin.limit import LimitAdmin
from django_dcron.admin.node import NodeAdmin
from django_dcron.admin.runs.admin import RunAdmin
from django_dcron.admin.runs.attempt import AttemptAdmin

__all__ = [
    "AlertAdmin",
    "AttemptAdmin",
    "AuditEntryAdmin",
    "CalendarAdmin",
    "DashboardAdmin",
    "FreezeAdmin",
    "IncidentAdmin",
    "JobAdmin",
    "LimitAdmin",
    "NodeAdmin",
    "RunAdmin",
]
