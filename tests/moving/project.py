"""Fill the tables of the schedulers in ``tests.moving.settings`` as a project does, migrated and by their own interfaces; then import
from those that are named, and print what became of each entry.
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
    scheduler.add_job("tests.moving.plain:report", "cron", hour=3, id="of apscheduler")
    scheduler.shutdown()
    schedule("tests.app.tasks.echo", name="of q2", schedule_type="C", cron="*/10 * * * *")
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


def import_from(source: str) -> dict[str, str]:
    out = StringIO()
    with suppress(CommandError):  # some are refused
        call_command("dcron", "import", source, "--apply", "--disabled", "--json", stdout=out)
    return {job["name"]: job["outcome"] for job in json.loads(out.getvalue())["jobs"]}


if __name__ == "__main__":
    fill()
    print(json.dumps({source: import_from(source) for source in sys.argv[1:]}))  # noqa: T201
