"""Call ``manage.py dcron`` and return its exit code, output and errors."""

import json
from io import StringIO
from typing import Any, NamedTuple

from django.core.management import call_command
from django.core.management.base import CommandError


class Call(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def call(*arguments: str) -> Call:
    out = StringIO()
    try:
        call_command("dcron", *arguments, stdout=out)
    except CommandError as error:
        return Call(error.returncode, out.getvalue(), str(error))
    return Call(0, out.getvalue(), "")


def table(out: str) -> list[list[str]]:
    """Return the cells of each line of an aligned table, with the header first."""
    lines = [line for line in out.splitlines() if line.strip()]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
