"""The Celery app of another project on the tests' broker, without Django and django-dcron."""

from celery import Celery

from tests.settings import CELERY_BROKER_URL

app = Celery("bare", broker=CELERY_BROKER_URL, fixups=[])
app.conf.broker_connection_retry_on_startup = True
