"""Alerts: send events of jobs and nodes to the channels in the settings.

Data flow: ``job_alerts``, ``overdue`` and ``cluster_alerts`` -> ``outbox`` -> ``channels``.

Invariants:

- Nothing waits for alerts. Workers and the scheduler only update ``Statistics``, as they always do.
- A thread of each node reads the counters of the jobs in the node's shards. A channel that fails
  or hangs delays alerts and nothing else.
- One transaction writes the counters seen (``AlertCheck``) and the alerts (``Alert``). It writes
  nothing if another process has changed the counters seen. So each event becomes one alert per
  channel, even if nodes come and go or read the counters twice.
- Nodes try to send an alert until the channel accepts it, for about a day. A channel gets an alert
  twice only if a node dies after sending and before recording it, or takes longer than
  ``CLAIM_TIMEOUT`` to send it.
- Channels and their secrets are in the settings, never in the database.
"""

from django_dcron.contrib.alerts.alerter import Alerter

__all__ = ["Alerter"]
