"""Alerts: what is noticed of jobs and nodes, told through the channels that the settings name.

Invariants:

- Nothing here is waited for. Workers and the scheduler only count what happens (``Statistics``), as they do anyway; a thread
  of each node looks at the counters of the jobs it leads. A channel that fails or hangs delays alerts, and nothing else.
- What was noticed and that it has been noticed are written in one transaction (``Notice``, ``Alert``), guarded by what was
  noticed before: nodes may come and go and look twice, each event becomes one alert in each channel.
- An alert is sent at least once: it is over when the channel has taken it, or has refused it for a day. Twice only if a
  node dies between sending it and saying so.
- Channels are named in the settings, and so are their secrets; the database has neither.

::

    noticing, overdue, of_cluster -> outbox -> channels
"""

from django_dcron.alerts.alerter import Alerter

__all__ = ["Alerter"]
