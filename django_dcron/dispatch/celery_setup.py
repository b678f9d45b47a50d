"""How the project has set Celery up: asked by the system checks, and before a node starts. Connects to nothing."""

from __future__ import annotations

from celery import current_app

from django_dcron.url_credentials import without_urls


def has_app() -> bool:
    """Whether the project has a Celery app of its own; without one Celery makes up a default that reaches nobody."""
    return bool(current_app.set_as_current)  # type: ignore[attr-defined]  # not in the stubs


def limitless_pool() -> str | None:
    """The configured worker pool, if it cannot end a run by force."""
    pool = str(current_app.conf.worker_pool)
    return None if pool.startswith(("prefork", "processes")) else pool


def transport_problem() -> str | None:
    """Why there is no transport for the broker's URL, or None; connects to nothing, and says nothing of a password."""
    try:
        current_app.connection_for_write().get_transport_cls()
    except (KeyError, ImportError, AttributeError) as error:
        return without_urls(str(error.args[0])) if error.args else type(error).__name__
    except ValueError:
        return "it cannot be read"  # the error might quote a part of a password
    return None
