"""Alerts: send events of jobs and nodes to the channels in the settings.

Data flow: ``job_alerts``, ``overdue`` and ``cluster_alerts`` -> ``outbox`` -> ``channels``.

Invariants:

- Nothing waits for alerts. Workers and the scheduler only update ``Statistics``, as they always do.
- A thread of each node reads the counters of the jobs it leads. A channel that fails or hangs
  delays alerts and nothing else.
- One transaction writes the counters seen (``Notice``) and the alerts (``Alert``), guarded by the
  previous counters.
- So each event becomes one alert per channel, even if nodes come and go or read the counters twice.
- An alert is sent at least once: until the channel accepts it or has refused it for a day. It is
  sent twice only if a node dies between sending and recording it.
- Channels and their secrets are in the settings, never in the database.
"""

from django_dcron.contrib.alerts.alerter import Alerter

__all__ = ["Alerter"]
