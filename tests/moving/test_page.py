"""docs/moving.md is held against the command."""

import re
import shlex
from datetime import timedelta
from pathlib import Path

import pytest

from django_dcron.management.commands import dcron
from django_dcron.moving import report
from django_dcron.moving.sources import SCHEDULERS
from tests.management.calling import call
from tests.moving.test_clock_changes import PAGE

CRONTAB = """\
MAILTO=ops@example.com
PATH=/opt/shop/bin:/usr/bin

# After the last order.
30 3 * * mon-fri  close-day --tax
@reboot start-things
"""


def test_the_sources() -> None:
    table = PAGE[: PAGE.index("Nothing of the source")]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == list(SCHEDULERS)


def test_the_command_lines_are_understood() -> None:
    lines = re.findall(r"(?:`|^\$ )manage\.py dcron ([^`\n]+)", PAGE, re.MULTILINE)
    assert len(lines) > 8
    for line in lines:
        words = shlex.split(line)
        if words != ["backfill"]:  # named, not called
            parser = dcron.Command().create_parser("manage.py", "dcron")
            assert parser.parse_args(words).subcommand == words[0]


def test_the_patience_of_the_report() -> None:
    assert timedelta(minutes=1) == report.LATE
    assert "came at most a minute after ours" in PAGE
    assert timedelta(minutes=6) == report.UNWRITTEN + report.LATE
    assert "younger than six minutes is not missed yet" in PAGE


@pytest.mark.django_db
def test_the_crontab_in_it(tmp_path: Path) -> None:
    (tmp_path / "crontab.txt").write_text(CRONTAB)
    shown = call("import", str(tmp_path / "crontab.txt"), "--timezone", "Europe/Berlin").out
    assert f"--timezone Europe/Berlin\n{shown}```" in PAGE
