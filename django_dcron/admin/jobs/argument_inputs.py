"""Inputs for the arguments of a job, from the parameters of its target, beside the raw JSON.

Invariants:

- The job stores the JSON. An input that the user hasn't changed changes nothing in it.
- If the user edited the raw JSON, it wins, and the inputs are shown with its values. Otherwise, the
  inputs that the user changed become part of the JSON. The server compares the submitted JSON with
  the JSON that it rendered, so this needs no JavaScript.
- A value that doesn't fit its input is shown as JSON. No value is lost or converted.
- Inputs of another target than the submitted one are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django import forms
from django.contrib.admin.helpers import Fieldset
from django.core.exceptions import ValidationError
from django.utils.functional import cached_property
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext as _

from django_dcron import targets
from django_dcron.admin.jobs.argument_fields import build_field, decimal_text, is_ambiguous
from django_dcron.admin.jobs.argument_json import OMITTED, JsonArgumentField
from django_dcron.admin.row_input import RowInputs
from django_dcron.exceptions import UnknownTarget
from django_dcron.targets.parameters import MAX_PARAMETERS, InputKind, TargetParameter

if TYPE_CHECKING:
    from django_dcron.admin.jobs.arguments_form import ArgumentsForm
    from django_dcron.admin.jobs.form import JobForm

PREFIX = "argument"
RENDERED_FOR = "arguments_target"
"""The name of the hidden field with the target whose inputs the page has."""
RENDERED_JSON = "arguments_json"
"""The name of the hidden field with the arguments that the page has as raw JSON."""
MAX_EXACT_INTEGER = 2**53
"""Above it, not every integer is a float."""


class Call(NamedTuple):
    """The arguments of a call."""

    args: list[Any]
    kwargs: dict[str, Any]


class ArgumentInputs(forms.Form):
    """One input for each parameter and each other argument. An empty input omits the argument."""

    def __init__(
        self,
        parameters: Sequence[TargetParameter],
        call: Call,
        data: Any = None,
        *,
        rows: RowInputs | None = None,
    ):
        self.rows = rows
        self.call = call
        given = _values_by_name(parameters, call)
        parameters = [*parameters, *_unnamed(parameters, given)]
        self.parameters = {each.name: each for each in parameters}
        kinds = {each.name: _kind(each, given) for each in parameters}
        initial = {
            name: _input_value(kinds[name], value) for name, value in given.items() if name in kinds
        }
        super().__init__(data, prefix=PREFIX, initial=initial)
        for parameter in parameters:
            self.fields[parameter.name] = build_field(parameter, kinds[parameter.name])
            if rows and parameter.model and kinds[parameter.name] == parameter.kind:
                field = self.fields[parameter.name]
                field.widget = rows.widget(parameter.model) or field.widget
        self._given = given
        self.missing: list[str] = []
        """The empty inputs of required arguments, after ``mark_missing``."""

    @cached_property
    def changed_data(self) -> list[str]:
        """The names of the changed inputs. An input that wasn't submitted isn't changed."""
        return [name for name in super().changed_data if self.add_prefix(name) in self.data]

    def clean(self) -> dict[str, Any]:
        """Check that the row of each changed key exists."""
        for name in self.changed_data:
            model, key = self.parameters[name].model, self.cleaned_data.get(name)
            if self.rows and model and key not in (None, "", OMITTED):
                try:
                    self.rows.check(model, key)
                except ValidationError as error:
                    self.add_error(name, error)
        return self.cleaned_data

    def changed_call(self) -> Call | None:
        """Return the arguments with the changed inputs, or None if no input is changed."""
        if not self.has_changed():
            return None
        values = dict(self._given)
        for name in self.changed_data:
            value = self._submitted_value(name)
            if value is not OMITTED:
                values[name] = value
            elif self.parameters[name].is_required and self.parameters[name].accepts_none:
                values[name] = None
            else:
                values.pop(name, None)
        args = []
        for parameter, _value in zip(self.parameters.values(), self.call.args, strict=False):
            if parameter.name not in values:
                break
            args.append(values.pop(parameter.name))
        kwargs = {name: values.pop(name) for name in self.call.kwargs if name in values}
        return Call(args, kwargs | values)

    def mark_missing(self) -> None:
        """Add an error to each empty input of a required argument."""
        for name, parameter in self.parameters.items():
            is_needed = parameter.is_required and not parameter.omitted_is_none
            if is_needed and name not in self.errors and not self._has_value(name):
                self.missing.append(name)
                self._set_error(name, _("Enter a value."))

    def _set_error(self, name: str, message: str) -> None:
        """Add the error as ``add_error`` does, which requires submitted data."""
        field_id = self[name].auto_id
        self.errors[name] = self.error_class([message], renderer=self.renderer, field_id=field_id)

    def _has_value(self, name: str) -> bool:
        if self.is_bound and name in self.changed_data:
            return self._submitted_value(name) is not OMITTED
        return name in self._given

    def _submitted_value(self, name: str) -> Any:
        """Return the JSON value of an input, or ``OMITTED`` if it is empty."""
        value = self.cleaned_data.get(name)
        if isinstance(self.fields[name], JsonArgumentField):
            return value
        return OMITTED if value in (None, "") else _json_value(value)


class JobArguments:
    """The arguments of a form: from its raw JSON, or from its inputs if only they were changed."""

    def __init__(self, form: JobForm | ArgumentsForm, target: str, initial: Call):
        self._form = form
        self._rows = form.rows
        self.target = target
        self.call = Call([], {})
        self.inputs: ArgumentInputs | None = None
        """None if there are no inputs, for example because the target is unknown."""
        self.replaces_inputs = self.replaces_json = False
        """Whether a preview has to replace the inputs or the raw JSON in the page."""
        self._errors_of_inputs: set[str] = set()
        if not form.is_bound:
            self._show(initial)

    @classmethod
    def of_job_form(cls, form: JobForm) -> JobArguments:
        if form.is_bound:
            return cls(form, str(form.data.get(form.add_prefix("target"), "")), Call([], {}))
        target = str(form.initial.get("target") or form.instance.target)
        return cls(form, target, _initial_call(form.initial, form.instance))

    @property
    def fieldset(self) -> Fieldset | None:
        """The inputs as Django's admin renders them; None without inputs."""
        inputs: Any = self.inputs  # the stubs accept only a form of a model
        return Fieldset(inputs, fields=list(inputs.fields)) if inputs else None

    @property
    def opens_json(self) -> bool:
        """Whether the page opens the raw JSON.

        It does so without inputs, for an error that isn't one of an input, and beside any error if
        the JSON has an argument that isn't a parameter of the target.
        """
        errors = (self._form.errors.get(name, ()) for name in ("args", "kwargs"))
        messages = {str(message) for each in errors for message in each}
        if self.inputs is None or not messages <= self._errors_of_inputs:
            return True
        known = {parameter.name for parameter in _parameters(self.target) or ()}
        return bool(messages) and not self.call.kwargs.keys() <= known

    @property
    def as_json(self) -> str:
        """The value of the hidden field with the arguments."""
        return json.dumps(self.call)

    def clean(self, cleaned: dict[str, Any]) -> None:
        """Apply the user's changes of raw JSON or inputs to the arguments in ``cleaned``."""
        data: Any = self._form.data
        rendered = _parse_call(data.get(RENDERED_JSON, ""))
        is_of_target = data.get(RENDERED_FOR, "") == self.target
        submitted_call = _cleaned_call(cleaned)
        # 1 and true are equal in Python.
        is_unedited = json.dumps(submitted_call) == json.dumps(rendered)
        self.replaces_inputs = not (is_of_target and is_unedited)
        if submitted_call is None:  # the raw JSON has an error
            self._show(rendered or Call([], {}))
            self.replaces_inputs = False
            return
        self._show(submitted_call)
        if is_unedited and self.inputs is not None:
            if is_of_target:
                self._apply_inputs(cleaned, submitted_call)
            self._add_errors()

    def _apply_inputs(self, cleaned: dict[str, Any], submitted_call: Call) -> None:
        """Apply the inputs that the user changed to the arguments in ``cleaned``."""
        data: Any = self._form.data
        parameters = list(self.inputs.parameters.values()) if self.inputs else []
        submitted = ArgumentInputs(parameters, submitted_call, data, rows=self._rows)
        if not submitted.is_valid():
            self.inputs = submitted
        elif (changed := submitted.changed_call()) is not None:
            self._show(changed)
            self.replaces_json = True
            # The next preview wouldn't know the input of an argument that is gone.
            self.replaces_inputs = not all(map(self._has_input, submitted.fields))
            cleaned.update(changed._asdict())
            self._show_as_json(changed)

    def _add_errors(self) -> None:
        """Add the errors of the inputs to the form, with the names of the inputs."""
        if self.inputs is None:
            return
        self.inputs.mark_missing()
        for name, messages in self.inputs.errors.items():
            for message in messages:
                text = _("%(name)s: %(problem)s") % {"name": name, "problem": message}
                self._form.add_error("kwargs", text)
                self._errors_of_inputs.add(text)

    def _show_as_json(self, call: Call) -> None:
        """Replace the raw JSON of the form, so that the page shows ``call``."""
        data: Any = self._form.data
        shown = data.copy()
        for name, value in call._asdict().items():
            shown[self._form.add_prefix(name)] = json.dumps(value, ensure_ascii=False)
        self._form.data = shown

    def _has_input(self, name: str) -> bool:
        return self.inputs is not None and name in self.inputs.fields

    def _show(self, call: Call) -> None:
        self.call = call
        parameters = _parameters(self.target)
        self.inputs = None
        if parameters is not None and _fit_by_position(call, parameters):
            inputs = ArgumentInputs(parameters, call, rows=self._rows)
            self.inputs = inputs if 0 < len(inputs.fields) <= MAX_PARAMETERS else None


def arguments_by_name(target: str, call: Call) -> dict[str, Any]:
    """Return all arguments of named parameters, and the other keyword arguments."""
    return _values_by_name(_parameters(target) or [], call)


def _parameters(key: str) -> list[TargetParameter] | None:
    try:
        return targets.get(key).parameters
    except UnknownTarget:
        return None


def _fit_by_position(call: Call, parameters: Sequence[TargetParameter]) -> bool:
    return len(call.args) <= sum(each.is_positional for each in parameters)


def _initial_call(initial: Mapping[str, Any], job: Any) -> Call:
    args, kwargs = (initial.get(name, getattr(job, name)) for name in ("args", "kwargs"))
    return Call(
        args if isinstance(args, list) else [],
        kwargs if isinstance(kwargs, dict) else {},
    )


def _cleaned_call(cleaned: Mapping[str, Any]) -> Call | None:
    args, kwargs = cleaned.get("args"), cleaned.get("kwargs")
    if isinstance(args, list) and isinstance(kwargs, dict):
        return Call(args, kwargs)
    return None


def _parse_call(text: str) -> Call | None:
    try:
        args, kwargs = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    return _cleaned_call({"args": args, "kwargs": kwargs})


def _values_by_name(parameters: Sequence[TargetParameter], call: Call) -> dict[str, Any]:
    """Return the arguments by name. Keyword arguments without a parameter are included."""
    names = (each.name for each in parameters)
    return dict(zip(names, call.args, strict=False)) | call.kwargs


def _unnamed(
    parameters: Sequence[TargetParameter], given: Mapping[str, Any]
) -> Iterator[TargetParameter]:
    """Yield the arguments that have no named parameter, so that the user can remove them."""
    known = {each.name for each in parameters}
    for name in given:
        if name not in known:
            yield TargetParameter(
                name, InputKind.ANY, is_required=False, is_positional=False, is_named=False
            )


def _kind(parameter: TargetParameter, given: Mapping[str, Any]) -> InputKind:
    """Return the kind of input; JSON for a value that the parameter's own input can't show."""
    if parameter.name not in given:
        return parameter.kind
    return parameter.kind if _fits(parameter, given[parameter.name]) else InputKind.JSON


def _fits(parameter: TargetParameter, value: Any) -> bool:
    match parameter.kind:
        case InputKind.BOOLEAN:
            return isinstance(value, bool)
        case InputKind.INTEGER:
            return isinstance(value, int) and not isinstance(value, bool)
        case InputKind.NUMBER:
            return isinstance(value, float) or (
                isinstance(value, int) and not isinstance(value, bool) and _is_exact_float(value)
            )
        case InputKind.TEXT:
            is_shown = isinstance(value, str) and value != "" and value.isprintable()
            return is_shown and not is_ambiguous(parameter, value)
        case InputKind.DECIMAL:
            return isinstance(value, str) and decimal_text(value) == value
        case InputKind.CHOICE:
            known = (each for each, _label in parameter.choices)
            return any(value == each and type(value) is type(each) for each in known)
        case InputKind.DATE | InputKind.DATETIME:
            return _time_of(parameter.kind, value) is not None
    return True


def _is_exact_float(value: int) -> bool:
    """Return whether a number input, which converts its text to a float, keeps the integer."""
    return abs(value) <= MAX_EXACT_INTEGER


def _time_of(kind: InputKind, value: Any) -> date | None:
    """Return ``value`` as a date or time, or None if the input wouldn't store the same value."""
    try:
        if kind == InputKind.DATE:
            at = date.fromisoformat(value)
            return at if _json_value(at) == value else None
        time = datetime.fromisoformat(value)
        is_kept = _is_shown_exactly(time) and _json_value(time) == value
    except (TypeError, ValueError, OverflowError):  # the local time may be out of range
        return None
    return time if is_kept else None


def _is_shown_exactly(time: datetime) -> bool:
    """Return whether an input of whole seconds of local time shows exactly ``time``.

    If the clock goes back, a repeated local time is ambiguous, and the input refuses it.
    """
    if not is_aware(time) or time.microsecond:
        return False
    local = localtime(time)
    return local.replace(fold=0).utcoffset() == local.replace(fold=1).utcoffset()


def _input_value(kind: InputKind, value: Any) -> Any:
    """Return the value for the input."""
    if kind in (InputKind.BOOLEAN, InputKind.CHOICE):
        return json.dumps(value)
    return _time_of(kind, value) if kind in (InputKind.DATE, InputKind.DATETIME) else value


def _json_value(value: Any) -> Any:
    """Convert the cleaned value of an input to its JSON value."""
    if isinstance(value, datetime):
        return (localtime(value) if is_aware(value) else value).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    return value
