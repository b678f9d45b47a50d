"""The only test that runs before the forks. It creates the test database and session fixtures."""

import pytest


@pytest.mark.django_db
def test_mutation_session_can_start() -> None:
    pass
