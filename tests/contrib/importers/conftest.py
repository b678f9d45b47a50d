"""The real models of other schedulers, with tables in the test database for a module's tests."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.db import connection
from django.test import override_settings
from pytest_django import DjangoDbBlocker

Install = Callable[..., None]

if find_spec("ephem") is None:  # Celery's solar schedules import it, and only beat uses it.
    sys.modules["ephem"] = ModuleType("ephem")
    vars(sys.modules["ephem"]).update(Observer=SimpleNamespace)


@pytest.fixture(scope="module")
def install(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Install]:
    """Return a function that adds an app to ``INSTALLED_APPS``, with its tables and settings.

    ``label``: the app's label, if it isn't ``app``.
    """
    with ExitStack() as stack:

        def install_app(app: str, label: str = "", **overrides: Any) -> None:
            # This comes first because the app reads its settings on import.
            stack.enter_context(override_settings(**overrides))
            stack.enter_context(override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, app]))
            config = apps.get_app_config(label or app)
            models = [model for model in config.get_models() if not model._meta.proxy]
            with django_db_blocker.unblock(), connection.schema_editor() as editor:
                for model in models:
                    editor.create_model(model)

            def drop() -> None:
                # Also remove the app's admin pages: the admin index looks up the app of each.
                for model in config.get_models():
                    if admin.site.is_registered(model):
                        admin.site.unregister(model)
                with django_db_blocker.unblock(), connection.schema_editor() as dropping:
                    for model in reversed(models):
                        dropping.delete_model(model)

            stack.callback(drop)

        yield install_app
