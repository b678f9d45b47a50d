"""`seed_week` of the example project, at moments with and without a running stocktake."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import TIMEOUT

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "example_project"

# The tests' settings don't install the shop's app, so another process seeds the data. It seeds
# several moments, each in a transaction that it rolls back. It seeds half a day of the two jobs
# that the command looks up by name: a whole week takes much longer.
SEED = """
import json, sys
from datetime import datetime, timedelta
from io import StringIO
from unittest import mock

import django
from django.conf import settings

settings.MIGRATION_MODULES = {app.rpartition(".")[2]: None for app in settings.INSTALLED_APPS}
settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
django.setup()
from django.core.management import call_command
from django.db import transaction
from django_dcron.models import Attempt, Incident
from django_dcron.testing import set_clock
from shop.management.commands import seed_week

seed_week.WEEK = timedelta(hours=12)
names = ("stocktake", "import-orders")
seed_week.HISTORIES = [history for history in seed_week.HISTORIES if history.name in names]
call_command("migrate", run_syncdb=True, verbosity=0)
for moment in map(datetime.fromisoformat, sys.argv[1:]):
    now = mock.patch("django.utils.timezone.now", return_value=moment)
    with transaction.atomic(), set_clock(moment), now:
        call_command("seed_week", stdout=StringIO())
        attempts = Attempt.objects.select_related("run")
        attempt = attempts.get(run__job__name="stocktake", run__state="running")
        print(json.dumps({
            "trigger": attempt.run.trigger,
            "seconds": (moment - attempt.started_at).total_seconds(),
            "since_heartbeat": (moment - attempt.run.heartbeat_at).total_seconds(),
            "done": attempt.progress_done,
            "of": attempt.progress_total,
            "lines": len(attempt.log.splitlines()),
            "failed_attempts": Attempt.objects.filter(outcome="failed").count(),
            "of_incidents": sum(Incident.objects.values_list("count", flat=True)),
        }))
        transaction.set_rollback(True)
"""


def test_seeded_data_has_a_running_stocktake_at_every_moment(tmp_path: Path) -> None:
    moments = {
        "2026-11-18T14:36:40+00:00": "schedule",  # the moment of the screenshots in the docs
        "2026-11-18T14:36:00+00:00": "manual",  # an occurrence is due and hasn't started yet
        "2026-11-18T14:36:01.5+00:00": "schedule",
        "2026-11-18T14:47:00+00:00": "manual",  # between two occurrences
        "2026-11-18T03:00:00+00:00": "manual",  # at night, hours after the last occurrence
    }
    output = subprocess.run(
        [sys.executable, "-c", SEED, *moments],
        cwd=EXAMPLE,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{EXAMPLE}{os.pathsep}{ROOT}",
            "DJANGO_SETTINGS_MODULE": "shop_site.settings",
            "SHOP_DIR": str(tmp_path),
        },
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
    ).stdout

    stocktakes = [json.loads(line) for line in output.splitlines()]
    assert [stocktake["trigger"] for stocktake in stocktakes] == list(moments.values())
    for stocktake in stocktakes:
        assert 0 < stocktake["seconds"] < 143
        assert stocktake["since_heartbeat"] == 1
        assert stocktake["of_incidents"] == stocktake["failed_attempts"] > 0
        assert 0 <= stocktake["done"] == stocktake["lines"] < stocktake["of"] == 20
