"""Store N jobs for django-celery-beat, due each full minute.

python -m benchmarks.contestants.beat_jobs N
"""

from __future__ import annotations

import json
import sys

import django
from django.core.management import call_command

from benchmarks.contestants.variables import wait_for_last_minute


def main(number: int) -> None:
    django.setup()
    call_command("migrate", verbosity=0)
    from django_celery_beat.models import CrontabSchedule, PeriodicTask

    wait_for_last_minute()
    each_minute = CrontabSchedule.objects.create(minute="*", timezone="UTC")
    jobs = (
        PeriodicTask(
            name=f"job-{n}",
            task="bench.trivial",
            crontab=each_minute,
            args=json.dumps([f"job-{n}"]),
        )
        for n in range(number)
    )
    PeriodicTask.objects.bulk_create(jobs, batch_size=1000)


if __name__ == "__main__":
    main(int(sys.argv[1]))
