"""Who it was, noted beside the reason they gave, as in the admin."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _

LONGEST_REASON = 150


def signed(reason: str, user: Any) -> str:
    name = user.get_username()
    if not reason:
        return _("by %(user)s") % {"user": name}
    return _("%(reason)s (%(user)s)") % {"reason": reason, "user": name}
