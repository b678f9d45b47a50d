"""The dashboard: the state of the whole system on one page that refreshes itself."""

from django_dcron.admin.dashboard.page import DashboardAdmin

__all__ = ["DashboardAdmin"]
