"""Check the URLs of alert channels, for ``check --database``.

Apprise loads all of its services to recognize one, which takes half a second. So not every command
checks the URLs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Tags, Warning, register

from django_dcron.checks.reporting import with_docs_link
from django_dcron.conf import Settings, settings
from django_dcron.utils.suggestions import did_you_mean

SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]{0,30}")
WEB_SCHEMES = ("http", "https")


@register(Tags.database)
def check_alert_channels(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **options: Any
) -> list[CheckMessage]:
    """Check that apprise knows the scheme of each URL. It may be a custom service."""
    return [*map(with_docs_link, _unsupported_schemes())] if databases else []


def are_channels_valid() -> bool:
    """Return whether the setting can be read. Otherwise, E001 reports it."""
    return vars(Settings)["ALERT_CHANNELS"].problem() is None


def _unsupported_schemes() -> Iterator[CheckMessage]:
    if not are_channels_valid():
        return
    urls = [
        (name, url)
        for name, channel in settings.ALERT_CHANNELS.items()
        for url in channel.get("apprise", ())
    ]
    if not urls or find_spec("apprise") is None:
        return
    from apprise.plugins import N_MGR

    services: Any = N_MGR  # it has no type annotations
    for name, url in urls:
        scheme, separator, _secrets = url.partition("://")
        if separator and (
            scheme.lower() in services
            # Apprise also accepts the web addresses that some services give to their users.
            or any(service.parse_native_url(url) for service in services.plugins())
        ):
            continue
        has_scheme = separator and SCHEME.fullmatch(scheme)
        near = did_you_mean(scheme, services.schemas()) if has_scheme else ""
        if not has_scheme:
            problem = "it doesn't begin with a scheme"
        elif near or scheme.lower() in WEB_SCHEMES:
            problem = f"apprise doesn't support the scheme {scheme!r}{near and f'.{near}'}"
        else:  # it may be a secret
            problem = "apprise doesn't support its scheme"
        yield Warning(
            f"DCRON_ALERT_CHANNELS: a URL of {name!r} isn't supported ({problem}), so its alerts "
            "aren't sent.",
            hint=(
                "For a webhook, write json://HOST/PATH, or jsons://HOST/PATH for HTTPS. Put a "
                "minus before the name of each query parameter: ?-NAME=VALUE."
                if scheme.lower() in WEB_SCHEMES
                else "Correct the URL, such as slack://... A custom service must be registered "
                "when Django starts."
            ),
            id="django_dcron.W025",
        )
