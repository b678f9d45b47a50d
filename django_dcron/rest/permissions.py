"""Who may what: Django's permissions of the models, and our own, as in the admin.

Closed by default: who is not logged in reaches nothing. A view says by method what it takes; to see a row, the right to view or
to change it. The project's ``DEFAULT_PERMISSION_CLASSES`` must allow the request as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.utils.translation import gettext as _
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import (
    AllowAny,
    BasePermission,
    DjangoModelPermissions,
    DjangoModelPermissionsOrAnonReadOnly,
    DjangoObjectPermissions,
    OperandHolder,
    SingleOperandHolder,
)
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.views import APIView


def may(user: Any, codename: str) -> bool:
    """``view_job`` is held by who may change jobs, too, as in the admin."""
    action, _underscore, model = codename.partition("_")
    actions = ("view", "change") if action == "view" else (action,)
    return any(user.has_perm(f"django_dcron.{each}_{model}") for each in actions)


def require_other_arguments(request: Request) -> None:
    """Raise ``PermissionDenied`` if the user may not run jobs with other arguments than their own."""
    if not may(request.user, "run_job_with_arguments"):
        raise PermissionDenied(
            _("You may not run a job with other arguments than its own (needed: run_job_with_arguments).")
        )


class HasPermissions(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        if not getattr(
            request.user, "is_authenticated", False
        ):  # None, if the project wants no AnonymousUser
            return False
        method = "GET" if request.method == "HEAD" else request.method
        operation = view.operations.get(method)  # type: ignore[attr-defined]
        # A method it does not have is answered so, to whoever is logged in.
        return operation is None or all(may(request.user, codename) for codename in operation.needs)


MODEL_PERMISSIONS = (
    DjangoModelPermissions,
    DjangoModelPermissionsOrAnonReadOnly,
    DjangoObjectPermissions,
)
"""REST framework's own rules for the permissions of a model. They know nothing of our verbs, and ``HasPermissions`` takes their place."""


def project_permissions() -> Iterator[Any]:
    """Yield an instance of each of the project's ``DEFAULT_PERMISSION_CLASSES`` that can refuse a request.

    ``AllowAny``, REST framework's default, would make the OpenAPI document say that no login is needed.
    """
    rules: Sequence[Any] = api_settings.DEFAULT_PERMISSION_CLASSES
    for rule in rules:
        if rule is not AllowAny:
            yield _with_our_verbs(rule)()


def _with_our_verbs(rule: Any) -> Any:
    """``rule`` with ``HasPermissions`` instead of the rules for models, also within ``&``, ``|`` and ``~``."""
    if isinstance(rule, OperandHolder):
        return OperandHolder(
            rule.operator_class, _with_our_verbs(rule.op1_class), _with_our_verbs(rule.op2_class)
        )
    if isinstance(rule, SingleOperandHolder):
        return SingleOperandHolder(rule.operator_class, _with_our_verbs(rule.op1_class))
    return HasPermissions if rule in MODEL_PERMISSIONS else rule
