"""One verb for one row after the other: each answer is said, and a refusal keeps none of the others from theirs."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django_dcron.exceptions import DcronError
from django_dcron.management.dcron.exits import no
from django_dcron.management.dcron.output import BAD, GOOD, Output

LONGEST_REASON = 255


@dataclass(frozen=True, slots=True)
class Done:
    said: str
    """What was done, for people."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """For programs."""


@dataclass(frozen=True, slots=True)
class Deed:
    on: Mapping[str, Any]
    """What it is done to, for programs."""
    name: str
    do: Callable[[], Done]


def perform(output: Output, deeds: Iterable[Deed]) -> None:
    """Raises ``CommandError`` in the end if any was refused."""
    results: list[dict[str, Any]] = []
    for deed in deeds:
        result, said, style = _do(deed)
        results.append(result)
        if not output.is_json:
            output.line(f"{deed.name}: {said}", style)
    if output.is_json:
        output.json({"version": 1, "results": results})
    if refused := sum(not result["done"] for result in results):
        raise no(f"{refused} of {len(results)} refused.")


def _do(deed: Deed) -> tuple[dict[str, Any], str, str]:
    try:
        done = deed.do()
    except (DcronError, ValueError) as error:
        return {**deed.on, "done": False, "error": str(error)}, f"refused: {error}", BAD
    return {**deed.on, "done": True, **done.told}, done.said, GOOD


def reason(typed: str) -> str:
    """What was typed, and always who it was: as in the admin."""
    name = _user()
    room = LONGEST_REASON - len(name) - 3
    return f"{typed[:room]} ({name})" if typed else f"by {name}"


def _user() -> str:
    try:
        return getpass.getuser()[:100]
    except (OSError, KeyError):  # a container may run as a number that has no name
        return "somebody"
