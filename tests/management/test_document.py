"""Test that docs/reference/cli.md matches the subcommands, their options and examples."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from django_dcron.diagnosis.why.verdicts import WhyVerdict
from django_dcron.management.commands import dcron
from django_dcron.management.commands.dcron import GROUPS, SUBCOMMANDS
from django_dcron.management.dcron import exits

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md").read_text()
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL))
COMMON_OPTIONS = {
    "--help",
    "--no-color",
    "--force-color",
    "--skip-checks",
    "--traceback",
    "--verbosity",
    "--settings",
    "--pythonpath",
}
OPTION = r"(?<![\w-])--[a-z][a-z-]+"
SELECTION = set(
    re.findall(OPTION, DOCUMENT[DOCUMENT.index("**Selections.**") : DOCUMENT.index("## Inspect")])
) - {"--json", "--reason", "--until"}
"""The options that select and confirm jobs, documented once for several subcommands."""
FILTERS = set(re.findall(OPTION, SECTIONS["list"])) - {"--json", "--limit", "--sort"}
"""The options that filter jobs, documented once with ``list``."""
BY_STATE = {"--state", "--enabled", "--paused", "--failing"}
"""The filters of jobs by their state. Commands that select runs don't have them."""
DOCUMENTED_ELSEWHERE = {
    # the options of runcron
    "start": {"--name", "--namespace", "--once", "--for", "--embedded", "--health-file", "--http"},
    "export": FILTERS,
    "cancel": (SELECTION | FILTERS) - BY_STATE,
    "rerun": (SELECTION | FILTERS) - BY_STATE,
} | dict.fromkeys(("run", "set", "pause", "resume"), SELECTION | FILTERS)


def options_of(name: str) -> set[str]:
    parser: Any = dcron.Command().create_parser("manage.py", "dcron")
    subparsers = next(action for action in parser._actions if action.dest == "subcommand")
    return {
        option
        for action in subparsers.choices[name]._actions
        for option in action.option_strings
        if option.startswith("--")
    }


def test_sections_match_subcommands() -> None:
    assert list(SECTIONS) == list(SUBCOMMANDS)
    for group in GROUPS:
        assert f"\n## {group}\n" in DOCUMENT
    for name in SUBCOMMANDS:
        assert f"[`{name}`](#{name})" in DOCUMENT


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_documented_options_match_options_of_subcommand(name: str) -> None:
    documented = set(re.findall(OPTION, SECTIONS[name]))
    options = options_of(name)
    assert documented <= options
    elsewhere = DOCUMENTED_ELSEWHERE.get(name, set())
    assert elsewhere <= options
    assert options - documented - COMMON_OPTIONS - elsewhere == set()


def test_documented_command_lines_are_valid() -> None:
    lines = re.findall(r"^(?:\$ )?manage\.py dcron (.+)$", DOCUMENT, re.MULTILINE)
    assert len(lines) > 25
    for line in lines:
        parser = dcron.Command().create_parser("manage.py", "dcron")
        assert parser.parse_args(shlex.split(line)).subcommand == line.split()[0]


def test_exit_codes_and_verdicts_are_documented() -> None:
    assert re.findall(r"^\| (\d) \|", DOCUMENT, re.MULTILINE) == [
        "0",
        str(exits.NEGATIVE),
        str(exits.USAGE_ERROR),
    ]
    assert {verdict.value for verdict in WhyVerdict} == set(
        re.findall(r"`(\w+)`", SECTIONS["why"][SECTIONS["why"].index("one of these words") :])
    )
