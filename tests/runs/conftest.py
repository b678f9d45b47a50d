import pytest

from django_dcron.dispatch import best_effort
from tests.execution.conftest import make_target, run_function

__all__ = ["make_target", "no_broker", "run_function"]


@pytest.fixture
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep runs that follow or wake in the database: there is no dispatcher."""
    monkeypatch.setattr(best_effort, "shared_dispatcher", lambda: None)
