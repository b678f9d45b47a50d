"""The current time of the database."""

from datetime import datetime

import pytest
from django.db import ConnectionHandler

from django_dcron.db.now import UtcNow
from django_dcron.models import Run


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("at", "stored"),
    [
        ("2026-03-01 12:00:00.000", "2026-03-01 12:00:00"),
        ("2026-03-01 12:00:00.052", "2026-03-01 12:00:00.052000"),
        ("2026-03-01 12:00:10.500", "2026-03-01 12:00:10.500000"),
    ],
)
def test_sqlite_now_has_the_format_of_python_datetimes(at: str, stored: str) -> None:
    memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    connection = ConnectionHandler({"default": memory})["default"]
    sql, _ = UtcNow().as_sqlite(Run.objects.all().query.get_compiler("default"), connection)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {sql}".replace("'NOW'", f"'{at}'"), [])
            assert cursor.fetchone() == (stored,)
    finally:
        connection.close()
    assert connection.ops.adapt_datetimefield_value(datetime.fromisoformat(at)) == stored
