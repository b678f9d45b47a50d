from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class DcronConfig(AppConfig):
    name = "django_dcron"
    verbose_name = _("Scheduled jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_dcron import checks  # noqa: F401  (registers the system checks)
        from django_dcron.conf import settings
        from django_dcron.db import query_log
        from django_dcron.runs.release import commit_of_project
        from django_dcron.utils.log_lines import protect_own_loggers

        protect_own_loggers()
        query_log.disable_query_log_in_own_threads()
        if settings.RELEASE is None:
            commit_of_project()

        if settings.AUTOSTART is True:  # ``check`` reports other values.
            from django_dcron import autostart

            autostart.install()

        autodiscover_modules("cron")  # The cron.py of each app declares its jobs with @cron.
