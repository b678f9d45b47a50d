"""A named filter of a list in the admin. Each user has their own."""

from __future__ import annotations

from django.core.validators import MaxLengthValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.models.exact_text import ExactCharField
from django_dcron.models.hidden_characters import validate_text

LONGEST_QUERY = 2_000


class SavedFilter(models.Model):
    owner = ExactCharField(
        _("owner"),
        max_length=190,
        help_text=_("The key of the user, who may be in another database."),
    )
    listing = models.CharField(
        _("list"), max_length=20, help_text=_("The rows of the list: job or run.")
    )
    name = ExactCharField(_("name"), max_length=60, validators=[validate_text])
    query = models.TextField(
        _("query string"),
        validators=[MaxLengthValidator(LONGEST_QUERY)],
        help_text=_("The filters, the search and the order of the list's URL."),
    )

    class Meta:
        verbose_name = _("saved filter")
        verbose_name_plural = _("saved filters")
        ordering = ("name",)
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(
                fields=("owner", "listing", "name"), name="dcron_saved_filter_name"
            ),
        )

    def __str__(self) -> str:
        return self.name
