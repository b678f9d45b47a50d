"""The declaration of an action on a row: its permission, form, conditions and effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from django import forms
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from django_dcron.admin.action_forms import ObjectActionForm
from django_dcron.admin.base import M
from django_dcron.diagnosis.scope import Scope

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


@dataclass(frozen=True, slots=True)
class ActionResult:
    text: str
    """The message to the user, which says what the action did."""
    created: Model | None = None
    """The row that the action created. The message links to it, and the button opens its page."""
    cautions: tuple[str, ...] = ()
    """Warnings about the created row, or about what the action did."""


def _no_refusal(obj: Any) -> StrOrPromise:
    return ""


def _all_rows(rows: QuerySet[Any]) -> QuerySet[Any]:
    return rows


def _no_permissions(obj: Any) -> Sequence[str]:
    return ()


def _no_cautions(rows: Sequence[Any], scope: Scope) -> Mapping[int, str]:
    return {}


@dataclass(frozen=True, slots=True)
class ObjectAction(Generic[M]):
    name: str
    label: StrOrPromise
    apply: Callable[[HttpRequest, M], ActionResult]
    permission: str
    """The word in ``has_<permission>_permission``, such as ``trigger`` for ``trigger_job``."""
    also_needs: Callable[[M], Sequence[str]] = _no_permissions
    """Returns the further permissions that this row needs."""
    refusal: Callable[[M], StrOrPromise] = _no_refusal
    """Returns why the action doesn't apply to the row's current state, or an empty string.

    With a reason, the row has no button and a request is refused. ``control`` decides whether the
    action is allowed.
    """
    refusal_in_list: Callable[[M], StrOrPromise] | None = None
    """``refusal`` for rows that are selected in the list, which may have rows that the user didn't
    think of. By default, it is the same.
    """
    form: type[ObjectActionForm] | None = None
    """The form shown before the action is applied. ``apply`` validates it again."""
    narrow_all: Callable[[QuerySet[M]], QuerySet[M]] = _all_rows
    """Returns the rows to which the action applies if the user selects all rows of the list."""
    apply_many: Callable[[HttpRequest, Sequence[M]], Sequence[ActionResult | Exception]] | None = (
        None
    )
    """Applies the action to several rows at once. Returns the result or the error of each row."""
    cautions_after: Callable[[Sequence[M], Scope], Mapping[int, str]] = _no_cautions
    """Returns warnings about rows to which the action was applied, by their keys.

    The scope contains the rows that the user may see.
    """
    has_page: bool = False
    """The form has its own page instead of a place next to the button.

    Such an action applies to one row only.
    """
    is_primary: bool = False
    explanation: StrOrPromise = ""
    """What the action does, for the confirmation page of many rows."""
    refusal_if_hidden: StrOrPromise = ""
    """Why the action is refused if the user may not see the row that it would create.

    Without this text, the action isn't refused.
    """
    confirm_label: Callable[[int], StrOrPromise] | None = None
    """Returns the label of the button that confirms the action for this number of rows.

    The default is ``label``.
    """

    def submit_label(self, number: int = 1) -> StrOrPromise:
        return self.confirm_label(number) if self.confirm_label else self.label


@dataclass(frozen=True, slots=True)
class Button:
    label: StrOrPromise
    url: str
    form: forms.Form | None = None
    """The form to show next to the button."""
    has_page: bool = False
    """Render the button as a link."""
    is_primary: bool = False
    submit_label: StrOrPromise = ""
    """The label of the form's own button."""
    form_id: str = ""
    """The id of the HTML form that the button submits."""
