from tests.schedules.conftest import machine_in_another_zone

__all__ = ["machine_in_another_zone"]
