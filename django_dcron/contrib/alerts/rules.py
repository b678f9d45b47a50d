"""The alert rules that apply to a job: its own rules, or the rules in the settings."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
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
    """Return the rules of a job. The default rules apply if it has none, or if they are invalid.

    Channels that are missing or have an invalid value are left out. A rule without other channels
    is replaced, because otherwise, nobody might be notified: by the default rules of its kind, or
    by all default rules if the job has no other rule.

    ``name``: the job's name, for the log. ``value``: the value of the job's field ``alerts``.
    """
    defaults = tuple(rule for rule in default_rules if rule.on not in CLUSTER_KINDS)
    if value is None:
        return defaults
    channels = settings.ALERT_CHANNELS
    try:
        rules = read_rules(value, channels, of_job=True)
    except InvalidRule as error:
        _log_invalid(name, error)
        try:
            rules = read_rules(value, None, of_job=True)
        except InvalidRule:
            return defaults
    for channel in sorted({channel for rule in rules for channel in rule.to}):
        if channel in channels and not channels[channel]:
            _log_invalid(name, f"channel {channel!r} has an invalid value")
    rules = tuple(replace(rule, to=tuple(filter(channels.get, rule.to))) for rule in rules)
    without_channels = {rule.on for rule in rules if not rule.to}
    if not without_channels:
        return rules
    kept = [rule for rule in rules if rule.to]
    return (*kept, *rules_of_kinds(defaults, *without_channels)) if kept else defaults


def _log_invalid(job: str, error: InvalidRule | str) -> None:
    extra = {"event": "alert_rules", "job": job}
    logger.error("alert rules invalid: job=%s error=%s", job, error, extra=extra)


def rules_of_kinds(rules: Iterable[Rule], *kinds: AlertKind) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules if rule.on in kinds)
