"""The outbox: alerts that wait to be sent, channel by channel, many in one message, tried again until taken.

A channel gets a message at once, and the next no sooner than its ``every`` after that: what comes meanwhile waits and goes
into that one. Sending happens outside any transaction, by whoever has put its claim on the alerts; a claim that is not
followed by anything is over after a while.

A channel of several URLs is as many places, each with alerts of its own: what one service has taken is not sent there again
because another has not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from django.db.models import F, Max, Q

from django_dcron.alerts.channels import places, send
from django_dcron.conf import settings
from django_dcron.domain.alerting import Kind
from django_dcron.domain.counts_in_words import number_of
from django_dcron.models import Alert
from django_dcron.models.database import alias_for, database_now, in_one_line

logger = logging.getLogger("django_dcron.alerts")

EVERY = timedelta(minutes=1)
"""Between two messages of a channel that does not say."""
TOLD_AT_ONCE = 200
"""Alerts in one message."""
TEXT_LIMIT = 3500
"""Characters of a message: what is too long for a service is refused, again and again."""
CLAIM = timedelta(minutes=5)
"""How long a sender may take before others try."""
FIRST_WAIT = timedelta(seconds=30)
LONGEST_WAIT = timedelta(minutes=30)
TRIES = 55
"""About a day."""
KEPT = timedelta(days=30)
FORGOTTEN_AT_ONCE = 1000
ERROR_LIMIT = 500
GRAVE = frozenset({Kind.FAILED, Kind.PAUSED, Kind.SILENT, Kind.NODE_LOST, Kind.UNHEALTHY})

Send = Callable[[Mapping[str, Any], str, str, str], None]
Row = tuple[Alert, str | Callable[[], str]]
"""Its text is put in last."""


@dataclass(frozen=True, slots=True)
class Message:
    """One alert, whichever channel it goes to."""

    kind: Kind
    key: str
    """Of what is told of once."""
    subject: str
    text: str | Callable[[], str] = ""
    """Or what says it, which is asked only if it is to be told."""
    job_id: int | None = None
    to: tuple[str, ...] = ()


def put(messages: Iterable[Message]) -> int:
    """Within the transaction that notes what they are about. What was told before is left out. Returns how many places."""
    return _insert(list(_rows(messages)))


def put_new(messages: Iterable[Message]) -> int:
    """What stands until it is told of, look after look: what was told is left out, by a look at the keys. Returns how many."""
    rows = list(_rows(messages))
    if not rows:
        return 0
    told = Alert.objects.using(alias_for(Alert)).filter(
        channel__in={row.channel for row, _ in rows}, key__in={row.key for row, _ in rows}
    )
    known = set(told.order_by().values_list("channel", "key"))
    return _insert([(row, text) for row, text in rows if (row.channel, row.key) not in known])


def _rows(messages: Iterable[Message]) -> Iterator[Row]:
    places_of: dict[str, list[str]] = {}
    for place, (channel, _) in places(settings.ALERT_CHANNELS).items():
        places_of.setdefault(channel, []).append(place)
    for message in messages:
        for channel in message.to:
            for place in places_of.get(channel, [channel]):
                row = Alert(
                    channel=place,
                    kind=message.kind,
                    key=message.key[:190],
                    job_id=message.job_id,
                    subject=message.subject[:255],
                )
                yield row, message.text


def _insert(rows: list[Row]) -> int:
    if rows:
        using = alias_for(Alert)
        now = database_now(using)
        for row, text in rows:
            row.text = text() if callable(text) else text
            row.created_at = row.try_at = now
        Alert.objects.using(using).bulk_create([row for row, _ in rows], ignore_conflicts=True)
    return len(rows)


def send_due(send: Send = send) -> int:
    """Send what is due, one message for each place. Returns how many alerts were taken."""
    return sum(send_to(place, send) for place in due_places())


def due_places() -> list[str]:
    """For which something waits."""
    using = alias_for(Alert)
    due = Alert.objects.using(using).filter(try_at__lte=database_now(using)).order_by()
    return sorted(due.values_list("channel", flat=True).distinct())


def send_to(place: str, send: Send = send) -> int:
    """Send what is due there, if the channel wants a message now. Returns how many alerts were taken."""
    using = alias_for(Alert)
    now = database_now(using)  # a claim is over so long from now, whatever was sent elsewhere before
    _channel, said = places(settings.ALERT_CHANNELS).get(place, (place, None))
    if said is None:
        due = Alert.objects.using(using).filter(channel=place, try_at__lte=now)
        _give_up(due.order_by(), "there is no such channel any more")
        return 0
    alerts = _claim(place, now, using) if _may_speak(place, said, now, using) else []
    if not alerts:
        return 0
    rows = Alert.objects.using(using).filter(claim=alerts[0].claim).order_by()
    try:
        send(said, *_worded(alerts), _tone(alerts))
    except Exception as error:
        # Somebody else's code, which may raise anything; what it raised is kept and said.
        _put_off(place, alerts, in_one_line(error).replace("\0", "")[:ERROR_LIMIT], rows, using)
        return 0
    rows.update(sent_at=database_now(using), try_at=None, claim=None, error="")
    return len(alerts)


def forget() -> bool:
    """Delete old alerts. False: there may be more of them."""
    rows = Alert.objects.using(alias_for(Alert))
    over = rows.filter(try_at=None, created_at__lt=database_now(rows.db) - KEPT).order_by("pk")
    ids = list(over.values_list("pk", flat=True)[:FORGOTTEN_AT_ONCE])
    rows.filter(pk__in=ids).delete()
    return len(ids) < FORGOTTEN_AT_ONCE


def _may_speak(place: str, said: Mapping[str, Any], now: datetime, using: str) -> bool:
    """Whether it was told nothing for a while, and nobody is telling it something, or will soon tell again what it refused."""
    theirs = Alert.objects.using(using).filter(channel=place)
    last = theirs.aggregate(at=Max("sent_at"))["at"]
    if last is not None and now - last < said.get("every", EVERY):
        return False
    telling = Q(claim__isnull=False, try_at__gt=now + CLAIM - FIRST_WAIT)
    refused = Q(claim=None, tries__gt=0, try_at__lte=now + FIRST_WAIT)
    return not theirs.filter(telling | refused, try_at__gt=now).exists()


def _claim(place: str, now: datetime, using: str) -> list[Alert]:
    due = Alert.objects.using(using).filter(channel=place, try_at__lte=now)
    ids = list(due.order_by("pk").values_list("pk", flat=True)[:TOLD_AT_ONCE])
    claim = uuid4()
    due.filter(pk__in=ids).order_by().update(claim=claim, try_at=now + CLAIM, tries=F("tries") + 1)
    return list(Alert.objects.using(using).filter(claim=claim).order_by("pk"))


def _put_off(place: str, alerts: Collection[Alert], error: str, rows: Any, using: str) -> None:
    """Each alert by its own tries: one that has just come has all of them before it, whatever it was sent with."""
    now = database_now(using)
    tries = sorted({alert.tries for alert in alerts})
    if tries[-1] >= TRIES:
        _give_up(rows.filter(tries__gte=TRIES), error)
    again = [number for number in tries if number < TRIES]
    for number in again:
        rows.filter(tries=number).update(try_at=now + _wait(number), claim=None, error=error)
    if again:
        logger.warning(
            "channel %s did not take %s, once more in %d s: %s",
            place,
            number_of(len(alerts), "alert"),
            _wait(again[0]).total_seconds(),
            error,
            extra={"event": "alert_not_sent", "channel": place},
        )


def _wait(tries: int) -> timedelta:
    return min(FIRST_WAIT * 2.0 ** min(tries - 1, 20), LONGEST_WAIT)


def _give_up(rows: Any, error: str) -> None:
    number = rows.update(try_at=None, claim=None, error=error)
    given_up = number_of(number, "alert is", "alerts are")
    logger.error("%s given up: %s", given_up, error, extra={"event": "alert_given_up"})


def _tone(alerts: list[Alert]) -> str:
    """That of the gravest."""
    kinds = {Kind(alert.kind) for alert in alerts}
    if kinds & {Kind.MISSED, Kind.LATE, Kind.DEGRADED} and not kinds & GRAVE:
        return "warning"
    return "failure" if kinds & GRAVE else "success"


def _worded(alerts: list[Alert]) -> tuple[str, str]:
    """Subject and text of the message: of each alert all, or its subject alone where that would be too long."""
    if len(alerts) == 1:
        return alerts[0].subject, (alerts[0].text or alerts[0].subject)[:TEXT_LIMIT]
    parts: list[str] = []
    left = TEXT_LIMIT
    for alert in alerts:
        part = f"{alert.subject}\n{alert.text}".strip()
        part = part if len(part) < left else alert.subject
        if len(part) >= left:
            parts.append(f"and {len(alerts) - len(parts)} more: see the list of alerts in the admin")
            break
        parts.append(part)
        left -= len(part) + 2
    return f"{len(alerts)} alerts: {alerts[0].subject}, ...", "\n\n".join(parts)
