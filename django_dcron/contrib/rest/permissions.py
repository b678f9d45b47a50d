"""Permissions: those of the models, from Django and from this package, as in the admin.

Anonymous users have no access. Each operation declares its permissions. To see a row, a user
needs the permission to view or to change it. The project's ``DEFAULT_PERMISSION_CLASSES`` must
allow the request as well.
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


def has_model_permission(user: Any, codename: str) -> bool:
    """Return whether the user has a permission.

    As in the admin, ``change_job`` includes ``view_job``.
    """
    action, _underscore, model = codename.partition("_")
    actions = ("view", "change") if action == "view" else (action,)
    return any(user.has_perm(f"django_dcron.{each}_{model}") for each in actions)


def require_other_arguments(request: Request) -> None:
    """Raise ``PermissionDenied`` if the user may not run jobs with other arguments."""
    if not has_model_permission(request.user, "run_job_with_arguments"):
        raise PermissionDenied(
            _(
                "You don't have permission to run a job with arguments that differ from "
                "its own (required: run_job_with_arguments)."
            )
        )


class HasPermissions(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        # The user is None if the project sets ``UNAUTHENTICATED_USER`` to None.
        if not getattr(request.user, "is_authenticated", False):
            return False
        operation = view.operation  # type: ignore[attr-defined]
        # Logged-in users get status 405 for a method that the view doesn't have.
        return operation is None or all(
            has_model_permission(request.user, codename) for codename in operation.permissions
        )


MODEL_PERMISSIONS = (
    DjangoModelPermissions,
    DjangoModelPermissionsOrAnonReadOnly,
    DjangoObjectPermissions,
)
"""REST framework's rules for model permissions.

They don't know the actions of this package, so ``HasPermissions`` replaces them.
"""


def project_permissions() -> Iterator[Any]:
    """Yield each of the project's ``DEFAULT_PERMISSION_CLASSES`` that can refuse a request.

    ``AllowAny``, REST framework's default, is omitted. With it, the OpenAPI document would
    describe operations without a login.
    """
    rules: Sequence[Any] = api_settings.DEFAULT_PERMISSION_CLASSES
    for rule in rules:
        if rule is not AllowAny:
            yield _replace_permissions(rule)()


def _replace_permissions(rule: Any) -> Any:
    """Return ``rule`` with ``HasPermissions`` in place of model rules, also within operators."""
    if isinstance(rule, OperandHolder):
        return OperandHolder(
            rule.operator_class,
            _replace_permissions(rule.op1_class),
            _replace_permissions(rule.op2_class),
        )
    if isinstance(rule, SingleOperandHolder):
        return SingleOperandHolder(rule.operator_class, _replace_permissions(rule.op1_class))
    return HasPermissions if rule in MODEL_PERMISSIONS else rule
