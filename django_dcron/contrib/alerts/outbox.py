"""The outbox: stores alerts, bundles them into messages and retries until they are accepted.

A destination is a channel, or one of the URLs of a channel that has several.

Invariants:

- A destination gets the first message at once, and the next one no sooner than ``every`` later.
  Alerts in between go into that message.
- Sending happens outside any transaction, by the process that has claimed the alerts. A claim
  expires after ``CLAIM_TIMEOUT``.
- A channel whose list of addresses or URLs is empty gets no alerts.
- Each destination has its own alerts, so a service that accepted an alert doesn't get it again
  because another service failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from django.db.models import F, Max, Q

from django_dcron.conf import settings
from django_dcron.contrib.alerts.channels import SendFailed, destinations, send, sends_nothing
from django_dcron.db.errors import in_one_line
from django_dcron.db.now import database_now
from django_dcron.db.routing import alias_for
from django_dcron.models import Alert
from django_dcron.policies.alerting import AlertKind
from django_dcron.utils.bounded_text import replace_unstorable
from django_dcron.utils.counts import number_of

logger = logging.getLogger("django_dcron.alerts")

DEFAULT_INTERVAL = timedelta(minutes=1)
"""The default interval between two messages of a channel."""
MAX_ALERTS_PER_MESSAGE = 200
"""The maximum number of alerts in one message."""
TEXT_LIMIT = 3500
"""The maximum number of characters in a message. Services refuse longer ones on every attempt."""
CLAIM_TIMEOUT = timedelta(minutes=5)
"""How long a sender may take. After that, another node may send the alerts."""
FIRST_WAIT = timedelta(seconds=30)
LONGEST_WAIT = timedelta(minutes=30)
MAX_TRIES = 55
"""Maximum number of tries to send an alert. With the waits between them, they take about a day."""
RETENTION = timedelta(days=30)
PRUNE_BATCH_SIZE = 1000
ERROR_LIMIT = 500
KINDS_BY_SEVERITY = (
    (AlertKind.UNHEALTHY, AlertKind.NODE_LOST),
    (AlertKind.FAILED, AlertKind.PAUSED, AlertKind.SILENT),
    (AlertKind.MISSED, AlertKind.LATE, AlertKind.DEGRADED),
    (AlertKind.RECOVERED,),
)
"""The kinds of alerts, most severe first. The order of the alerts in a message."""
SEVERITY: dict[str, int] = {
    kind: number for number, kinds in enumerate(KINDS_BY_SEVERITY) for kind in kinds
}
UNKNOWN_SEVERITY = SEVERITY[AlertKind.FAILED]
"""The severity of a kind of a newer release, whose nodes may run at the same time."""
LEVELS = ("failure", "failure", "warning", "success")
"""The level of each severity."""

Send = Callable[[Mapping[str, Any], str, str, str], None]


class NewAlert(NamedTuple):
    row: Alert
    text: str | Callable[[], str]
    """The text of the row, which is added just before the insert."""


@dataclass(frozen=True, slots=True)
class Message:
    """One alert, before it is assigned to channels."""

    kind: AlertKind
    key: str
    """Identifies the event, so that it is reported once."""
    subject: str
    text: str | Callable[[], str] = ""
    """The text, or a function that returns it. The function is called only if the alert is new."""
    job_id: int | None = None
    to: tuple[str, ...] = ()
    run_id: UUID | None = None
    incident_id: int | None = None


def store_alerts(messages: Iterable[Message]) -> int:
    """Store alerts, within the transaction that records their cause. Return their number.

    Alerts that are stored already are ignored.
    """
    return _insert(list(_new_alerts(messages)))


def store_new_alerts(messages: Iterable[Message]) -> int:
    """Store alerts about lasting states, except alerts that an earlier check stored.

    Return their number.
    """
    alerts = list(_new_alerts(messages))
    if not alerts:
        return 0
    stored = Alert.objects.using(alias_for(Alert)).filter(
        channel__in={each.row.channel for each in alerts},
        key__in={each.row.key for each in alerts},
    )
    known = set(stored.order_by().values_list("channel", "key"))
    return _insert([each for each in alerts if (each.row.channel, each.row.key) not in known])


def _new_alerts(messages: Iterable[Message]) -> Iterator[NewAlert]:
    channels = settings.ALERT_CHANNELS
    destinations_of: dict[str, list[str]] = {
        name: [] for name, channel in channels.items() if sends_nothing(channel)
    }
    for name, destination in destinations(channels).items():
        destinations_of.setdefault(destination.channel, []).append(name)
    for message in messages:
        for channel in message.to:
            for name in destinations_of.get(channel, [channel]):
                row = Alert(
                    channel=name,
                    kind=message.kind,
                    key=message.key[:190],
                    job_id=message.job_id,
                    run=message.run_id,
                    incident_id=message.incident_id,
                    subject=message.subject[:255],
                )
                yield NewAlert(row, message.text)


def _insert(alerts: list[NewAlert]) -> int:
    if alerts:
        using = alias_for(Alert)
        now = database_now(using)
        for row, text in alerts:
            row.text = text() if callable(text) else text
            row.created_at = row.try_at = now
        rows = [each.row for each in alerts]
        Alert.objects.using(using).bulk_create(rows, ignore_conflicts=True)
    return len(alerts)


def send_due(send: Send = send) -> int:
    """Send all due alerts, one message per destination. Return the number of accepted alerts."""
    return sum(send_to(destination, send) for destination in due_destinations())


def due_destinations() -> list[str]:
    """Return the destinations with due alerts."""
    using = alias_for(Alert)
    due = Alert.objects.using(using).filter(try_at__lte=database_now(using)).order_by()
    return sorted(due.values_list("channel", flat=True).distinct())


def send_to(destination: str, send: Send = send) -> int:
    """Send the due alerts of a destination, unless it must wait.

    Return the number of accepted alerts.
    """
    using = alias_for(Alert)
    # Read the time here, because the claim lasts from now on, however long other destinations took.
    now = database_now(using)
    found = destinations(settings.ALERT_CHANNELS).get(destination)
    if not _may_send(destination, found.settings if found else {}, now, using):
        return 0
    alerts = _claim(destination, now, using)
    if not alerts:
        return 0
    rows = Alert.objects.using(using).filter(claim=alerts[0].claim).order_by()
    try:
        if found is None:
            # During a deploy that adds a channel, other nodes may already have its settings.
            raise SendFailed(_why_not_found(destination))
        send(found.settings, *_subject_and_text(alerts), LEVELS[_severity(alerts[0])])
    except Exception as error:
        # A channel runs third-party code, which may raise anything. Store and log the error.
        text = replace_unstorable(in_one_line(error)[:ERROR_LIMIT])
        _postpone(destination, alerts, text, rows, using)
        return 0
    rows.update(sent_at=database_now(using), try_at=None, claim=None, error="")
    return len(alerts)


def _why_not_found(destination: str) -> str:
    """Return why the settings don't contain the destination."""
    channel, _space, _number = destination.partition(" ")  # such as ``ops 2``
    found = settings.ALERT_CHANNELS.get(channel)
    if found == {}:
        return "the channel's value is invalid; to see why: manage.py check"
    if found is not None and sends_nothing(found):
        return "the node's settings contain no address or URL for the channel"
    return "the node's settings don't contain the channel"


def prune_alerts() -> bool:
    """Delete one batch of old alerts. Return False if there may be more."""
    rows = Alert.objects.using(alias_for(Alert))
    expired = rows.filter(try_at=None, created_at__lt=database_now(rows.db) - RETENTION).order_by(
        "pk"
    )
    ids = list(expired.values_list("pk", flat=True)[:PRUNE_BATCH_SIZE])
    rows.filter(pk__in=ids).delete()
    return len(ids) < PRUNE_BATCH_SIZE


def _may_send(
    destination: str, channel_settings: Mapping[str, Any], now: datetime, using: str
) -> bool:
    """Return whether the destination may get a message now.

    It may not in these cases:

    - The last message is too recent.
    - Another process began to send to the destination less than ``FIRST_WAIT`` ago.
    - The destination refused an alert, and the retry is due soon.
    """
    alerts = Alert.objects.using(using).filter(channel=destination)
    last = alerts.aggregate(at=Max("sent_at"))["at"]
    if last is not None and now - last < channel_settings.get("every", DEFAULT_INTERVAL):
        return False
    sending = Q(claim__isnull=False, try_at__gt=now + CLAIM_TIMEOUT - FIRST_WAIT)
    awaiting_retry = Q(claim=None, tries__gt=0, try_at__lte=now + FIRST_WAIT)
    return not alerts.filter(sending | awaiting_retry, try_at__gt=now).exists()


def _claim(destination: str, now: datetime, using: str) -> list[Alert]:
    """Claim the oldest due alerts. Return them by severity, and by age within a severity."""
    due = Alert.objects.using(using).filter(channel=destination, try_at__lte=now)
    ids = list(due.order_by("pk").values_list("pk", flat=True)[:MAX_ALERTS_PER_MESSAGE])
    claim = uuid4()
    due.filter(pk__in=ids).order_by().update(
        claim=claim, try_at=now + CLAIM_TIMEOUT, tries=F("tries") + 1
    )
    claimed = Alert.objects.using(using).filter(claim=claim).order_by("pk")
    return sorted(claimed, key=_severity)


def _postpone(
    destination: str, alerts: Collection[Alert], error: str, rows: Any, using: str
) -> None:
    """Postpone each alert according to its number of tries. A new alert still has all its tries."""
    now = database_now(using)
    tries = sorted({alert.tries for alert in alerts})
    if tries[-1] >= MAX_TRIES:
        _give_up(destination, rows.filter(tries__gte=MAX_TRIES), error)
    retried = [number for number in tries if number < MAX_TRIES]
    for number in retried:
        rows.filter(tries=number).update(try_at=now + _wait(number), claim=None, error=error)
    if retried:
        logger.warning(
            "alerts not sent: channel=%s alerts=%d retry_in=%ds error=%s",
            destination,
            len(alerts),
            _wait(retried[0]).total_seconds(),
            error,
            extra={"event": "alert_not_sent", "channel": destination},
        )


def _wait(tries: int) -> timedelta:
    return min(FIRST_WAIT * 2.0 ** min(tries - 1, 20), LONGEST_WAIT)


def _give_up(destination: str, rows: Any, error: str) -> None:
    number = rows.update(try_at=None, claim=None, error=error)
    logger.error(
        "alerts given up: channel=%s alerts=%d error=%s",
        destination,
        number,
        error,
        extra={"event": "alert_given_up", "channel": destination},
    )


def _severity(alert: Alert) -> int:
    return SEVERITY.get(alert.kind, UNKNOWN_SEVERITY)


def _subject_and_text(alerts: list[Alert]) -> tuple[str, str]:
    """Return subject and text of a message. An alert that is too long is reduced to its subject."""
    if len(alerts) == 1:
        return alerts[0].subject, (alerts[0].text or alerts[0].subject)[:TEXT_LIMIT]
    parts: list[str] = []
    left = TEXT_LIMIT
    for alert in alerts:
        part = f"{alert.subject}\n{alert.text}".strip()
        part = part if len(part) < left else alert.subject
        if len(part) >= left:
            number = number_of(len(alerts) - len(parts), "more alert is", "more alerts are")
            parts.append(f"{number} listed in the admin")
            break
        parts.append(part)
        left -= len(part) + 2
    return f"{len(alerts)} alerts: {alerts[0].subject.rstrip('.')}, ...", "\n\n".join(parts)
