"""Somebody who has locked rows and does not let go, as a frozen process does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections, models, transaction


@contextmanager
def keeping_locked(rows: models.QuerySet) -> Iterator[None]:  # type: ignore[type-arg]
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                list(rows.select_for_update())
                held.set()
                let_go.wait(60)
        finally:
            connections.close_all()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(30)
        yield
    finally:
        let_go.set()
        holder.join(30)
