"""The site. Importing it makes its Celery app current in every process that loads Django."""

from shop_site.celery import app as celery_app

__all__ = ["celery_app"]
