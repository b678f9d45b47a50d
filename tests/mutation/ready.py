"""The one test that runs before the forks: it makes the test database and what else a session makes once."""

import pytest


@pytest.mark.django_db
def test_the_session_is_ready() -> None:
    pass
