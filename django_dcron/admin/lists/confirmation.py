"""Ask for confirmation and the action's form before an action is applied to many rows.

Invariants:

- The action applies to the rows that the page showed. The page carries their keys instead of a
  filter, which may match other rows later.
- If all rows are selected and there are more than one request can process, the action applies to
  those up to the highest key at that time that match the filter when it is their turn. Each request
  processes the next rows by key, and then submits itself again.
- The page submits to the same list action, so that CSRF and permissions are checked again.
- Rows that the action can't apply to are omitted and listed with the reason.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import model_ngettext
from django.core.exceptions import BadRequest, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from django_dcron.admin.action_forms import ObjectActionForm
from django_dcron.admin.display import link
from django_dcron.admin.lists.bounded import bounded_count_text
from django_dcron.diagnosis.bounded_count import count_up_to

if TYPE_CHECKING:
    from django_dcron.admin.actions import ActionAdmin
    from django_dcron.admin.object_action import ObjectAction

CONFIRMED = "confirmed"
FILTERS = "list_filters"
"""The form field with the list's query string, for the redirect after the action."""
MAX_SHOWN = 20
MAX_PROGRESS_COUNTED = 100_000
"""The rows of an action on all matching rows are counted up to this number, for the progress."""
SELECT_ACROSS = "select_across"
UNTIL, AFTER = "all_until", "all_after"
DONE, CHANGED, TOTAL = "all_done", "all_changed", "all_total"
"""The form fields of an action on all matching rows: the bounds of the keys, and the progress.

No field of an action's form has these names.
"""


def confirm_or_perform(
    model_admin: ActionAdmin[Any],
    request: HttpRequest,
    action: ObjectAction[Any],
    rows: QuerySet[Any],
    most: int,
) -> HttpResponse:
    """Show the confirmation page, or apply a confirmed action to the first ``most`` rows."""
    if request.POST.get(SELECT_ACROSS) == "1":
        rows = action.narrow_all(rows)
    if UNTIL in request.POST:
        return _continue(model_admin, request, action, rows, most)
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
    model_admin.perform(request, action, selected[:most], in_list=True)
    filters = request.POST.get(FILTERS, "")
    return HttpResponseRedirect(f"{request.path}?{filters}" if filters else request.get_full_path())


def _continue(
    model_admin: ActionAdmin[Any],
    request: HttpRequest,
    action: ObjectAction[Any],
    rows: QuerySet[Any],
    most: int,
) -> HttpResponse:
    """Apply the action to the next rows of all that match.

    The messages stay stored until the list shows them.
    """
    form = action.form(request.POST) if action.form else None
    numbers = {name: request.POST.get(name, "") for name in (UNTIL, AFTER, DONE, CHANGED, TOTAL)}
    if form is not None and not form.is_valid():
        if not numbers[AFTER]:
            return _page(model_admin, request, action, rows, most, form)
        # The end of the pause has passed meanwhile.
        for error in (text for texts in form.errors.values() for text in texts):
            model_admin.message_user(request, str(error), messages.ERROR)
        return _end(model_admin, request, numbers)
    rows = rows.order_by("pk").filter(pk__lte=_key(model_admin, numbers[UNTIL]))
    if numbers[AFTER]:
        rows = rows.filter(pk__gt=_key(model_admin, numbers[AFTER]))
    selected = list(rows[: most + 1])
    batch = selected[:most]
    values = _values(form, request)
    submitted = request.POST.copy()
    for name, value in values.items():  # each group has the same end of a pause
        submitted[name] = value
    request.POST = submitted  # type: ignore[assignment]
    results = model_admin.perform(request, action, batch, in_list=True, shows_results=False)
    done = _number(numbers[DONE]) + len(batch)
    numbers[DONE] = str(done)
    numbers[CHANGED] = str(_number(numbers[CHANGED]) + len(results))
    if len(selected) > most:
        numbers |= {AFTER: str(batch[-1].pk), TOTAL: str(max(_number(numbers[TOTAL]), done + 1))}
        return _progress_page(model_admin, request, action, values, numbers)
    return _end(model_admin, request, numbers)


def _end(
    model_admin: ActionAdmin[Any], request: HttpRequest, numbers: dict[str, str]
) -> HttpResponse:
    text = _("Done for %(count)d of %(total)d selected items.") % {
        "count": _number(numbers[CHANGED]),
        "total": max(_number(numbers[TOTAL]), _number(numbers[DONE])),
    }
    model_admin.message_user(request, text, messages.INFO)
    return HttpResponseRedirect(request.get_full_path())


def _values(form: ObjectActionForm | None, request: HttpRequest) -> dict[str, str]:
    """Return what the form submits again. A duration or a time of day has become an instant."""
    if form is None:
        return {}
    return {
        name: value.isoformat() if isinstance(value, datetime) else request.POST.get(name, "")
        for name, value in form.cleaned_data.items()
    }


def _key(model_admin: ActionAdmin[Any], text: str) -> Any:
    try:
        return model_admin.opts.pk.to_python(text)
    except ValidationError:
        raise BadRequest("invalid key") from None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _progress_page(
    model_admin: ActionAdmin[Any],
    request: HttpRequest,
    action: ObjectAction[Any],
    values: dict[str, str],
    numbers: dict[str, str],
) -> HttpResponse:
    context = {
        "title": action.label,
        "action": action,
        "values": values,
        "numbers": numbers,
        "across_name": SELECT_ACROSS,
        "checkbox_name": ACTION_CHECKBOX_NAME,
        "path": request.get_full_path(),
        "back": request.get_full_path(),
    }
    return model_admin.render_page(request, "continue_action.html", context)


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
        if refusal := model_admin.refusal(request, action, row, in_list=True):
            refused.append((link(row, site), refusal))
        else:
            selected.append(row)
    takes_all = len(first_rows) > most and request.POST.get(SELECT_ACROSS) == "1"
    numbers = {}
    if takes_all:
        last = rows.order_by("-pk").first()
        numbers = {UNTIL: last.pk if last else "", TOTAL: count_up_to(rows, MAX_PROGRESS_COUNTED)}
    filters = request.POST.get(FILTERS, request.GET.urlencode())
    name = model_ngettext(model_admin.opts, len(selected))
    context = {
        "title": action.label
        if takes_all
        else _("%(action)s: %(count)d %(name)s")
        % {"action": action.label, "count": len(selected), "name": name},
        "action": action,
        "submit_label": action.label if takes_all else action.submit_label(len(selected)),
        "form": form,
        "selected": [
            (link(row, site), model_admin.state_label(row)) for row in selected[:MAX_SHOWN]
        ],
        "more": max(len(selected) - MAX_SHOWN, 0),
        "refused": refused[:MAX_SHOWN],
        "refused_more": max(len(refused) - MAX_SHOWN, 0),
        "most": most,
        "found": bounded_count_text(rows) if len(first_rows) > most else None,
        "checkbox_name": ACTION_CHECKBOX_NAME,
        "keys": [row.pk for row in (first_rows[:1] if takes_all else selected)],
        "takes_all": takes_all,
        "across_name": SELECT_ACROSS,
        "numbers": numbers,
        "confirmed_name": CONFIRMED,
        "filters_name": FILTERS,
        "filters": filters,
        "path": f"{request.path}?{filters}" if takes_all else request.path,
        "back": f"{request.path}?{filters}",
    }
    return model_admin.render_page(request, "confirm_action.html", context)
