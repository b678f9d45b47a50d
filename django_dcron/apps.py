from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class DcronConfig(AppConfig):
    name = "django_dcron"
    verbose_name = _("Scheduled jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_dcron import checks  # noqa: F401  (registers the system checks)

        autodiscover_modules("cron")  # every app's cron.py declares its jobs with @cron
