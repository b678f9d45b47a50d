"""The form that runs a job with other arguments: inputs and raw JSON, as in the form of a job."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.admin.helpers import Fieldset
from django.core.exceptions import ValidationError
from django.utils import translation
from django.utils.translation import gettext_lazy

from django_dcron import targets
from django_dcron.admin.action_forms import ObjectActionForm
from django_dcron.admin.jobs.argument_inputs import Call, JobArguments, arguments_by_name
from django_dcron.admin.json_input import JsonFormField, json_textarea
from django_dcron.exceptions import InvalidArguments, UnknownTarget
from django_dcron.models import Job
from django_dcron.models.job_validation import JSON_EXAMPLES, wrong_type


class ArgumentsForm(ObjectActionForm):
    """Arguments that replace the job's own, with the same validation.

    The permission to run a job doesn't include the right to see its definition, so the form masks
    secrets. Values that stay masked are replaced with the job's own values when the form is
    cleaned.
    """

    args = JsonFormField(
        example=JSON_EXAMPLES["args"],
        label=gettext_lazy("Arguments"),
        required=False,
        widget=json_textarea(rows=3),
        help_text=gettext_lazy("A JSON list of positional arguments, such as [1, true]."),
    )
    kwargs = JsonFormField(
        example=JSON_EXAMPLES["kwargs"],
        label=gettext_lazy("Keyword arguments"),
        required=False,
        widget=json_textarea(rows=3),
        help_text=gettext_lazy('A JSON object, such as {"city": "Berlin"}.'),
    )

    class Media:
        css: ClassVar = {"all": ["django_dcron/job_form.css"]}

    def __init__(self, data: Any = None, *, row: Job, **options: Any):
        args, kwargs = targets.redact_secrets(row.args), targets.redact_secrets(row.kwargs)
        super().__init__(data, row=row, initial={"args": args, "kwargs": kwargs}, **options)
        self.job = row
        self.arguments = JobArguments(self, row.target, Call(args, kwargs))

    @property
    def raw_fieldset(self) -> Fieldset:
        """The raw JSON as Django's admin renders it."""
        form: Any = self  # the stubs accept only a form of a model
        return Fieldset(form, fields=list(self.fields))

    def clean_args(self) -> Any:
        return self._json_value("args", list)

    def clean_kwargs(self) -> Any:
        return self._json_value("kwargs", dict)

    def _json_value(self, name: str, kind: type) -> Any:
        value = self.cleaned_data[name]
        if value is None:  # an emptied text area
            return kind()
        if not isinstance(value, kind):
            raise ValidationError(wrong_type(value, kind, JSON_EXAMPLES[name]))
        return value

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        self.arguments.clean(cleaned)
        if not self.errors:
            own = Call(self.job.args, self.job.kwargs)
            cleaned["args"] = targets.restore_secrets(cleaned["args"], own.args)
            # An emptied input passes the positional arguments after it by name.
            by_name = arguments_by_name(self.job.target, own)
            cleaned["kwargs"] = targets.restore_secrets(cleaned["kwargs"], by_name)
            try:
                targets.check_arguments(self.job.target, cleaned["args"], cleaned["kwargs"])
            except InvalidArguments as error:
                self.add_error(error.field, error.translate(translation))
            except UnknownTarget as error:
                self.add_error(None, error.translate(translation))
        return cleaned
