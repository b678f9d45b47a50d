"""The reason of an action, with the name of the user who gave it."""

from __future__ import annotations

from django.utils.translation import gettext as _

LONGEST_REASON = 150
"""Characters of a reason, without the name."""


def signed_reason(reason: str, name: str) -> str:
    """Return ``reason (name)``, or ``by name`` without a reason, in the active language."""
    if not reason:
        return _("by %(user)s") % {"user": name}
    return _("%(reason)s (%(user)s)") % {"reason": reason, "user": name}
