"""Ask for confirmation and the action's form before an action is applied to many rows.

Invariants:

- The action applies to the rows that the page showed. The page carries their keys instead of a
  filter, which may match other rows later.
- The page submits to the same list action, so that CSRF and permissions are checked again.
- Rows that the action can't apply to are omitted and listed with the reason.
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
    from django_dcron.admin.actions import ActionAdmin
    from django_dcron.admin.object_action import ObjectAction

CONFIRMED = "confirmed"
FILTERS = "list_filters"
"""The form field with the list's query string, for the redirect after the action."""
MAX_SHOWN = 20


def confirm_or_perform(
    model_admin: ActionAdmin[Any],
    request: HttpRequest,
    action: ObjectAction[Any],
    rows: QuerySet[Any],
    most: int,
) -> HttpResponse:
    """Show the confirmation page, or apply a confirmed action to the first ``most`` rows."""
    is_confirmed = CONFIRMED in request.POST
    submitted = request.POST if is_confirmed else None
    form = action.form(submitted) if action.form else None
    if not is_confirmed or (form is not None and not form.is_valid()):
        return _page(model_admin, request, action, rows, most, form)
    selected = list(rows[: most + 1])
    if not selected:
        text = _("Nothing was changed because the selected items no longer exist.")
        model_admin.message_user(request, text, messages.WARNING)
    if len(selected) > most:
        text = _("Only the first %(count)d selected items were processed.") % {"count": most}
        model_admin.message_user(request, text, messages.WARNING)
    model_admin.perform(request, action, selected[:most])
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
    first_rows = list(rows[: most + 1])
    selected, refused = [], []
    for row in first_rows[:most]:
        if refusal := model_admin.refusal(request, action, row):
            refused.append((link(row, site), refusal))
        else:
            selected.append(row)
    filters = request.POST.get(FILTERS, request.GET.urlencode())
    name = model_ngettext(model_admin.opts, len(selected))
    context = {
        **site.each_context(request),
        "title": _("%(action)s: %(count)d %(name)s")
        % {"action": action.label, "count": len(selected), "name": name},
        "opts": model_admin.opts,
        "media": model_admin.media,
        "action": action,
        "submit_label": action.submit_label(len(selected)),
        "form": form,
        "selected": [
            (link(row, site), model_admin.state_label(row)) for row in selected[:MAX_SHOWN]
        ],
        "more": max(len(selected) - MAX_SHOWN, 0),
        "refused": refused[:MAX_SHOWN],
        "refused_more": max(len(refused) - MAX_SHOWN, 0),
        "most": most,
        "found": bounded_count_text(rows) if len(first_rows) > most else None,
        "checkbox": ACTION_CHECKBOX_NAME,
        "keys": [row.pk for row in selected],
        "confirmed": CONFIRMED,
        "filters_name": FILTERS,
        "filters": filters,
        "path": request.path,
        "back": f"{request.path}?{filters}",
    }
    request.current_app = site.name
    return TemplateResponse(request, "admin/django_dcron/confirm_action.html", context)
