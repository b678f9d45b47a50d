"""The project's Celery setup, for system checks and the start of a node, without a connection."""

from __future__ import annotations

from celery import current_app

from django_dcron.utils.url_credentials import without_urls


def has_app() -> bool:
    """Return whether the project has its own Celery app.

    Celery's default app isn't configured for the project's broker.
    """
    return bool(current_app.set_as_current)  # type: ignore[attr-defined]  # not in the stubs


def is_eager() -> bool:
    """Return whether ``delay`` calls tasks in this process."""
    return bool(current_app.conf.task_always_eager)


def has_broker() -> bool:
    """Return whether the project names a broker. Otherwise, Celery tries a local RabbitMQ."""
    return bool(_broker_url())


def has_memory_broker() -> bool:
    """Return whether messages stay in the memory of the process that sends them."""
    return _broker_url().startswith("memory:")


def _broker_url() -> str:
    urls = (current_app.conf.broker_write_url, current_app.conf.broker_url)
    return str(next(filter(None, urls), ""))


def pool_without_kill() -> str | None:
    """Return the configured worker pool if it can't terminate a run."""
    pool = str(current_app.conf.worker_pool)
    return None if pool.startswith(("prefork", "processes")) else pool


def transport_problem() -> str | None:
    """Return why there is no transport for the broker's URL, or None.

    The text contains no password.
    """
    try:
        current_app.connection_for_write().get_transport_cls()
    except (KeyError, ImportError, AttributeError) as error:
        return without_urls(str(error.args[0])) if error.args else type(error).__name__
    except ValueError:
        return "the URL can't be read"  # The error might quote a part of the password.
    return None
