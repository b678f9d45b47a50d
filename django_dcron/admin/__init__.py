"""The admin: jobs and calendars are edited here; runs, attempts, nodes and alerts are read. Importing it registers them, and the dashboard.

Everything is written through ``control``, never by a model's own ``save``.
"""

from django_dcron.admin.alert import AlertAdmin
from django_dcron.admin.calendar import CalendarAdmin
from django_dcron.admin.dashboard import DashboardAdmin
from django_dcron.admin.jobs.admin import JobAdmin
from django_dcron.admin.node import NodeAdmin
from django_dcron.admin.runs.admin import RunAdmin
from django_dcron.admin.runs.attempt import AttemptAdmin

__all__ = [
    "AlertAdmin",
    "AttemptAdmin",
    "CalendarAdmin",
    "DashboardAdmin",
    "JobAdmin",
    "NodeAdmin",
    "RunAdmin",
]
