"""Settings of a project that sends alerts to a webhook."""

import os
from datetime import timedelta

from django_dcron.policies import outages
from tests.settings import *  # noqa: F403

DCRON_ALERT_CHANNELS = {
    "ops": {"apprise": [os.environ["DCRON_TEST_WEBHOOK"]], "every": timedelta()}
}
if "DCRON_TEST_HANGING_WEBHOOK" in os.environ:
    DCRON_ALERT_CHANNELS["hanging"] = {"apprise": [os.environ["DCRON_TEST_HANGING_WEBHOOK"]]}
DCRON_ALERTS = [
    {"on": kind, "to": [*DCRON_ALERT_CHANNELS]}
    for kind in ("failed", "recovered", "node_lost", "unhealthy")
]
if "DCRON_TEST_SHORTEST_OUTAGE" in os.environ:
    outages.SHORTEST_OUTAGE = timedelta(seconds=int(os.environ["DCRON_TEST_SHORTEST_OUTAGE"]))
