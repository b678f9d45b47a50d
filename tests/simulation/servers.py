"""The database server of this operating system process, as the settings choose it."""

from __future__ import annotations

from types import ModuleType

from tests.simulation import settings


def _chosen() -> ModuleType:
    if settings.DATABASE == "postgresql":
        from tests.simulation import postgresql

        return postgresql
    from tests.simulation import sqlite

    return sqlite


server = _chosen()

__all__ = ["server"]
