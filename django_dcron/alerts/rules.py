"""The rules in force: a job's own, or those of the settings."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from django_dcron.conf import settings
from django_dcron.domain.alerting import OF_THE_CLUSTER, InvalidRule, Kind, Rule, read_rules

logger = logging.getLogger("django_dcron.alerts")


def of_settings() -> tuple[Rule, ...]:
    """``check`` reports rules that cannot be read; until they are mended there are none."""
    try:
        return read_rules(settings.ALERTS, settings.ALERT_CHANNELS, of_job=False)
    except InvalidRule as error:
        logger.error("DCRON_ALERTS: %s", error, extra={"event": "alert_rules"})
        return ()


def of_job(name: str, own: Any, general: Iterable[Rule]) -> tuple[Rule, ...]:
    """``name``: the job's, for the log. ``own``: as its field has it. One that is no longer valid, as its channel is gone, gives way to the general ones."""
    if own is not None:
        try:
            return read_rules(own, settings.ALERT_CHANNELS, of_job=True)
        except InvalidRule as error:
            extra = {"event": "alert_rules", "job": name}
            logger.error("the alerts of %s: %s; the general rules count", name, error, extra=extra)
    return tuple(rule for rule in general if rule.on not in OF_THE_CLUSTER)


def about(rules: Iterable[Rule], *kinds: Kind) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules if rule.on in kinds)
