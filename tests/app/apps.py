from django.apps import AppConfig

from tests.app import faults


class SampleConfig(AppConfig):
    name = "tests.app"
    label = "sample"

    def ready(self) -> None:
        faults.install()
