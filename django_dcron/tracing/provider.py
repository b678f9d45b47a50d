"""The project's tracer provider, if it is configured and works."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from django_dcron import __version__

try:
    from opentelemetry import trace
except ImportError:
    installed = False
else:
    installed = True

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

logger = logging.getLogger("django_dcron.tracing")

_given_up = False
"""Whether the provider has raised in this process."""


def configured_provider() -> TracerProvider | None:
    """Return the project's tracer provider, or None if tracing is off."""
    if not installed or _given_up:
        return None
    try:
        provider = trace.get_tracer_provider()
    except Exception as error:  # The environment names a provider that can't be loaded.
        _give_up(error)
        return None
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return provider


@lru_cache(maxsize=4)
def tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("django_dcron", __version__)


@contextmanager
def disable_on_error() -> Iterator[None]:
    """Catch errors of the project's provider, sampler and processors, and turn tracing off.

    Such an error must not look like one of a run, the broker or the database.
    """
    try:
        yield
    except Exception as error:
        _give_up(error)


def _give_up(error: Exception) -> None:
    """Turn tracing off in this process, and log the error."""
    global _given_up
    _given_up = True
    extra = {"event": "tracing_failed"}
    logger.error("tracing failed, disabled in this process", exc_info=error, extra=extra)
