"""Ask for confirmation and the action's form before an action is applied to many rows.

Invariants:

- The action applies to the rows that the page showed. The page carries their keys instead of a
  filter, which may match other rows later.
- The answer is a request of the same list action, so that CSRF and permissions are checked again.
- Rows to which the action doesn't apply are left out and listed with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import model_ngettext
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from django_dcron.admin.action_forms import ObjectActionForm
from django_dcron.admin.display import link
from django_dcron.admin.lists.bounded import bounded_count_text

if TYPE_CHECKING:
    from django_dcron.admin.actions import ActionAdmin, ObjectAction

CONFIRMED = "confirmed"
FILTERS = "list_filters"
"""The form field with the query string of the list, to which the answer redirects."""
MOST_SHOWN = 20


def confirm_or_perform(
    model_admin: ActionAdmin[Any],
    request: HttpRequest,
    action: ObjectAction[Any],
    rows: QuerySet[Any],
    most: int,
) -> HttpResponse:
    """Show the page, or apply the action to the first ``most`` rows of the list."""
    answered = CONFIRMED in request.POST
    form = action.form(request.POST if answered else None) if action.form else None
    if not answered or (form is not None and not form.is_valid()):
        return _page(model_admin, request, action, rows, most, form)
    chosen = list(rows[: most + 1])
    if not chosen:
        text = _("Nothing was changed because the selected items no longer exist.")
        model_admin.message_user(request, text, messages.WARNING)
    if len(chosen) > most:
        text = _("Only the first %(count)d selected items were processed.") % {"count": most}
        model_admin.message_user(request, text, messages.WARNING)
    model_admin.perform(request, action, chosen[:most])
    filters = request.POST.get(FILTERS, "")
    return HttpResponseRedirect(f"{request.path}?{filters}" if filters else request.get_full_path())


def _page(
    model_admin: ActionAdmin[Any],
    request: HttpRequest,
    action: ObjectAction[Any],
    rows: QuerySet[Any],
    most: int,
    form: ObjectActionForm | None,
) -> HttpResponse:
    site = model_admin.admin_site
    found = list(rows[: most + 1])
    chosen, left_out = [], []
    for row in found[:most]:
        if refusal := model_admin.refusal(request, action, row):
            left_out.append((link(row, site), refusal))
        else:
            chosen.append(row)
    filters = request.POST.get(FILTERS, request.GET.urlencode())
    name = model_ngettext(model_admin.opts, len(chosen))
    context = {
        **site.each_context(request),
        "title": _("%(action)s: %(count)d %(name)s")
        % {"action": action.label, "count": len(chosen), "name": name},
        "opts": model_admin.opts,
        "media": model_admin.media,
        "action": action,
        "submit_label": action.submit_label(len(chosen)),
        "form": form,
        "shown": [(link(row, site), model_admin.state_label(row)) for row in chosen[:MOST_SHOWN]],
        "more": max(len(chosen) - MOST_SHOWN, 0),
        "left_out": left_out[:MOST_SHOWN],
        "left_out_more": max(len(left_out) - MOST_SHOWN, 0),
        "most": most,
        "found": bounded_count_text(rows) if len(found) > most else None,
        "checkbox": ACTION_CHECKBOX_NAME,
        "keys": [row.pk for row in chosen],
        "confirmed": CONFIRMED,
        "filters_name": FILTERS,
        "filters": filters,
        "path": request.path,
        "back": f"{request.path}?{filters}",
    }
    request.current_app = site.name
    return TemplateResponse(request, "admin/django_dcron/confirm_action.html", context)
