"""Mutants that no test has to kill, each with the reason. They are left out of the samples.

An entry names the file, the function, and what the changed lines look like before and after, in full. An entry that matches
no mutant any more is reported, to be removed.
"""

from __future__ import annotations

from typing import NamedTuple


class Equivalent(NamedTuple):
    file: str
    function: str
    """Or the empty string, for code that runs at import."""
    before: str
    after: str
    reason: str


EQUIVALENT: tuple[Equivalent, ...] = ()
