"""The dashboard's entry in the admin: a page with its own permission, without a table."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from django_dcron.models.job import Job


class Dashboard(Job):
    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = _("dashboard")
        verbose_name_plural = _("dashboard")
