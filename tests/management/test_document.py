"""docs/cli.md is held against the tree: every subcommand, every option, every command line in it."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from django_dcron.management.commands import dcron
from django_dcron.management.commands.dcron import GROUPS, SUBCOMMANDS
from django_dcron.management.dcron import exits
from django_dcron.observability.why.verdicts import Verdict

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL))
OF_EVERY_COMMAND = {
    "--help",
    "--no-color",
    "--force-color",
    "--skip-checks",
    "--traceback",
    "--verbosity",
    "--settings",
    "--pythonpath",
}
ELSEWHERE = {"start": {"--name", "--namespace", "--once", "--for", "--embedded", "--health-file", "--http"}}
"""Those of runcron."""


def options_of(name: str) -> set[str]:
    parser: Any = dcron.Command().create_parser("manage.py", "dcron")
    subparsers = next(action for action in parser._actions if action.dest == "subcommand")
    return {
        option
        for action in subparsers.choices[name]._actions
        for option in action.option_strings
        if option.startswith("--")
    }


def test_every_subcommand_has_its_section_and_no_other() -> None:
    assert list(SECTIONS) == list(SUBCOMMANDS)
    for group in GROUPS:
        assert f"\n## {group}\n" in DOCUMENT
    for name in SUBCOMMANDS:
        assert f"[`{name}`](#{name})" in DOCUMENT


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_documented_options_exist_and_those_there_are_documented(name: str) -> None:
    documented = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", SECTIONS[name]))
    options = options_of(name)
    assert documented <= options
    assert options - documented - OF_EVERY_COMMAND - ELSEWHERE.get(name, set()) == set()


def test_the_command_lines_are_understood() -> None:
    lines = re.findall(r"^(?:\$ )?manage\.py dcron (.+)$", DOCUMENT, re.MULTILINE)
    assert len(lines) > 25
    for line in lines:
        parser = dcron.Command().create_parser("manage.py", "dcron")
        assert parser.parse_args(shlex.split(line)).subcommand == line.split()[0]


def test_the_exit_codes_and_verdicts() -> None:
    assert re.findall(r"^\| (\d) \|", DOCUMENT, re.MULTILINE) == ["0", str(exits.NO), str(exits.CANNOT)]
    assert {verdict.value for verdict in Verdict} == set(
        re.findall(r"`(\w+)`", SECTIONS["why"][SECTIONS["why"].index("one of these words") :])
    )
