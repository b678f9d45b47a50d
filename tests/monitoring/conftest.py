from tests.diagnosis.conftest import find, system

__all__ = ["find", "system"]
