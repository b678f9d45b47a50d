"""The alert rules that apply to a job: its own rules, or the rules in the settings."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from django_dcron.conf import settings
from django_dcron.policies.alerting import CLUSTER_KINDS, AlertKind, InvalidRule, Rule, read_rules

logger = logging.getLogger("django_dcron.alerts")


def rules_of_settings() -> tuple[Rule, ...]:
    """Return the rules in the settings, or none if they are invalid.

    A system check reports invalid rules, too.
    """
    try:
        return read_rules(settings.ALERTS, settings.ALERT_CHANNELS, of_job=False)
    except InvalidRule as error:
        logger.error(
            "alert rules invalid: setting=DCRON_ALERTS error=%s",
            error,
            extra={"event": "alert_rules"},
        )
        return ()


def rules_of_job(name: str, value: Any, default_rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the rules of a job. If its own rules are invalid, the default rules apply.

    Removing a channel, for example, makes the rules that name it invalid. So does an invalid value
    of a channel, because it has no receivers: otherwise, nobody might be notified.

    ``name``: the job's name, for the log. ``value``: the value of the job's field ``alerts``.
    """
    if value is not None:
        with_receivers = [channel for channel, found in settings.ALERT_CHANNELS.items() if found]
        try:
            return read_rules(value, with_receivers, of_job=True)
        except InvalidRule as error:
            extra = {"event": "alert_rules", "job": name}
            text = "alert rules invalid, using DCRON_ALERTS: job=%s error=%s"
            logger.error(text, name, error, extra=extra)
    return tuple(rule for rule in default_rules if rule.on not in CLUSTER_KINDS)


def rules_of_kinds(rules: Iterable[Rule], *kinds: AlertKind) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules if rule.on in kinds)
