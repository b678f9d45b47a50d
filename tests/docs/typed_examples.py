"""The README's job, which mypy checks strictly (``files`` in pyproject.toml).

``test_examples`` compares it with the README.
"""

from collections.abc import Iterator
from datetime import timedelta

from django_dcron import cron, current_run


class Invoice:
    """Replaces a model of the project."""

    class objects:  # noqa: N801 (as in Django)
        @staticmethod
        def filter(**lookups: object) -> "Iterator[Invoice]":
            yield Invoice()

    def send(self) -> None:
        pass


@cron("30 3 * * MON-FRI", timezone="Europe/Berlin", max_attempts=3, timeout=timedelta(minutes=10))
def send_invoices() -> None:
    run = current_run()
    invoices = Invoice.objects.filter(sent_at=None, due_at__lte=run.scheduled_at)
    for done, invoice in enumerate(invoices, 1):
        invoice.send()  # printed text and logged warnings go to the run's log
        run.progress(done, note=str(invoice))
