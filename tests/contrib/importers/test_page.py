"""Compare docs/how-to/migrate.md and migrate-sources.md with the command."""

import re
import shlex
from datetime import timedelta
from pathlib import Path

import pytest

from django_dcron.contrib.importers import report
from django_dcron.contrib.importers.sources import SCHEDULERS
from django_dcron.management.commands import dcron
from tests.contrib.importers.test_clock_changes import DIRECTORY
from tests.management.calling import call

PAGE = "".join((DIRECTORY / name).read_text() for name in ("migrate.md", "migrate-sources.md"))
PROSE = " ".join(PAGE.split())

CRONTAB = """\
MAILTO=ops@example.com
PATH=/opt/shop/bin:/usr/bin

# After the last order.
30 3 * * mon-fri  close-day --tax
@reboot start-things
"""


def test_documented_sources_match_the_code() -> None:
    table = PAGE[: PAGE.index("## Switch")]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == list(SCHEDULERS)


def test_documented_command_lines_parse() -> None:
    lines = re.findall(r"(?:`|^\$ )manage\.py dcron ([^`\n]+)", PAGE, re.MULTILINE)
    assert len(lines) > 8
    for line in lines:
        words = shlex.split(line)
        if words != ["backfill"]:  # mentioned, but not called
            parser = dcron.Command().create_parser("manage.py", "dcron")
            assert parser.parse_args(words).subcommand == words[0]


def test_documented_report_limits_match_the_code() -> None:
    assert timedelta(minutes=1) == report.LATE
    assert "came at most a minute after the shadow's" in PROSE
    assert timedelta(minutes=6) == report.WRITE_DELAY + report.LATE
    assert "younger than six minutes isn't reported as missing yet" in PROSE


@pytest.mark.django_db
def test_documented_crontab_output_matches_the_command(tmp_path: Path) -> None:
    (tmp_path / "crontab.txt").write_text(CRONTAB)
    shown = call("import", str(tmp_path / "crontab.txt"), "--timezone", "Europe/Berlin").out
    assert f"--timezone Europe/Berlin\n{shown}```" in PAGE
