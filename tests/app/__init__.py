"""A small app that uses django-dcron like a project. Its Celery app must be the current one."""

from tests.celery_app import app as celery_app

__all__ = ["celery_app"]
