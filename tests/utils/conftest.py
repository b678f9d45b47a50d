from tests.schedules.conftest import unusual_local_time_zone

__all__ = ["unusual_local_time_zone"]
