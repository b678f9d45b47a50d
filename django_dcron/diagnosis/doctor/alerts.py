"""Check that alerts arrive: find the channels whose alerts weren't sent.

An alert that was given up doesn't count if the channel got an alert afterwards: the channel works
again.
"""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Count, Exists, Max, Min, OuterRef, Q

from django_dcron.db.routing import alias_for
from django_dcron.diagnosis.doctor.findings import Code, Findings, Subject
from django_dcron.diagnosis.doctor.window import Window, format_moment
from django_dcron.models import Alert
from django_dcron.utils.bounded_text import with_ellipsis
from django_dcron.utils.counts import number_of
from django_dcron.utils.messages import with_full_stop

FAILED_TRIES = 3
"""From this number of tries on, an alert that wasn't sent is reported: after about two minutes."""
TRIED_FOR = timedelta(days=1)
"""``contrib.alerts`` tries to send an alert for a little longer, and then gives it up."""
GIVEN_UP_FOR = timedelta(days=1)
"""How long an alert that was given up is reported."""
ERROR_SHOWN = 200


def examine_alerts(window: Window, findings: Findings) -> None:
    all_alerts = Alert.objects.using(alias_for(Alert))
    alerts = all_alerts.exclude(error="")
    tried = alerts.filter(try_at__isnull=False, tries__gte=FAILED_TRIES)
    sent_later = all_alerts.filter(
        channel=OuterRef("channel"), sent_at__gt=OuterRef("created_at") + TRIED_FOR
    )
    given_up = alerts.filter(
        ~Exists(sent_later), try_at=None, created_at__gt=window.now - TRIED_FOR - GIVEN_UP_FOR
    )
    unsent = (tried | given_up).filter(sent_at=None)
    if window.namespace:
        unsent = unsent.filter(Q(job=None) | Q(job__namespace=window.namespace))
    channels = unsent.order_by("channel").values("channel")
    for row in channels.annotate(number=Count("pk"), oldest=Min("created_at"), latest=Max("pk")):
        error = all_alerts.filter(pk=row["latest"]).values_list("error", flat=True).first()
        if error is None:  # The alert has been deleted meanwhile.
            continue
        unsent_alerts = number_of(row["number"], "alert wasn't", "alerts weren't")
        findings.add(
            Code.ALERTS_UNDELIVERED,
            Subject("channel", row["channel"], row["channel"]),
            f"{unsent_alerts} sent, the oldest since "
            f"{format_moment(row['oldest'])}. "
            f"{with_full_stop(with_ellipsis(' '.join(error.split()), ERROR_SHOWN))}",
            at=row["oldest"],
            advice="Check this channel in DCRON_ALERT_CHANNELS, and try it: manage.py dcron alert "
            "CHANNEL. The admin lists the alerts.",
        )
