"""Empty the results and the queue, and publish N plain Celery tasks.

python -m benchmarks.contestants.results_messages N
"""

from __future__ import annotations

import sys

import django
from django.core.management import call_command

from benchmarks.contestants.celery_app import app, trivial


def main(number: int) -> None:
    django.setup()
    call_command("migrate", verbosity=0)
    call_command("flush", interactive=False, verbosity=0)
    app.control.purge()
    for n in range(number):
        trivial.delay(f"job-{n}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
