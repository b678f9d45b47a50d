"""Create entries in other schedulers as a project would, and import them.

The tables come from their migrations and the entries from their own APIs. The script imports from
the schedulers that its arguments name and prints the outcome of each entry as JSON.
"""

import json
import sys
from contextlib import suppress
from io import StringIO

import django
from django.core.management import CommandError, call_command


def fill() -> None:
    django.setup()
    call_command("migrate", verbosity=0)
    from apscheduler.schedulers.background import BackgroundScheduler
    from django_apscheduler.jobstores import DjangoJobStore
    from django_q.tasks import schedule

    scheduler = BackgroundScheduler(timezone="Europe/Berlin")
    scheduler.add_jobstore(DjangoJobStore())
    scheduler.start(paused=True)
    scheduler.add_job("tests.contrib.importers.plain:report", "cron", hour=3, id="of apscheduler")
    scheduler.shutdown()
    schedule("tests.app.tasks.echo", name="of q2", schedule_type="C", cron="*/10 * * * *")
    fill_by_code()
    if sys.version_info < (3, 12):
        from celery.schedules import crontab
        from django_celery_beat.schedulers import DatabaseScheduler

        from tests.celery_app import app

        app.conf.beat_schedule = {
            "of beat": {
                "task": "tests.app.tasks.echo",
                "schedule": crontab(hour="4", minute="0"),
                "args": (1,),
            }
        }
        DatabaseScheduler(app=app).setup_schedule()


def fill_by_code() -> None:
    from huey import crontab
    from huey.contrib.djhuey import db_periodic_task
    from scheduler.models import Task

    from tests.app.tasks import echo

    db_periodic_task(crontab(minute="*/7"))(echo)
    task = Task(name="of scheduler", task_type="CronTaskType", cron_string="5 * * * *")
    task.callable, task.queue = "tests.app.tasks.echo", "default"
    task.save(schedule_job=False)


def import_from(source: str) -> dict[str, str]:
    out = StringIO()
    with suppress(CommandError):  # the import refuses some entries
        call_command("dcron", "import", source, "--apply", "--disabled", "--json", stdout=out)
    return {job["name"]: job["outcome"] for job in json.loads(out.getvalue())["jobs"]}


if __name__ == "__main__":
    fill()
    print(json.dumps({source: import_from(source) for source in sys.argv[1:]}))  # noqa: T201
