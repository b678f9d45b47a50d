"""Compare the names in the documentation with the code."""

import re
from pathlib import Path

import pytest

from django_dcron import checks
from django_dcron.conf import Settings
from django_dcron.exceptions import InvalidSchedule
from django_dcron.schedules.rule_text import MACROS
from django_dcron.schedules.schedule import parse_schedule

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (ROOT / "docs" / "reference" / "settings.md").read_text()
CHECKS = (ROOT / "docs" / "reference" / "checks.md").read_text()
SCHEDULES = (ROOT / "docs" / "reference" / "schedules.md").read_text()


def test_documented_settings_are_exactly_the_existing_ones() -> None:
    documented = re.findall(r"^\| `(DCRON_\w+)` \|", SETTINGS, re.MULTILINE)
    assert documented == [setting.name for setting in Settings.all()]


def test_documented_durations_and_numbers_match_the_defaults() -> None:
    rows = dict(re.findall(r"^\| `(DCRON_\w+)` \| ([\d.]+)(?: s)? \|", SETTINGS, re.MULTILINE))
    numbers = {
        setting.name: float(
            getattr(setting.default, "total_seconds", lambda value=setting.default: value)()
        )
        for setting in Settings.all()
        if setting.name in rows
    }
    assert {name: float(shown) for name, shown in rows.items()} == numbers
    assert len(rows) == 16


def test_every_system_check_is_documented() -> None:
    ids = set(re.findall(r"^([EIW]\d{3}) ", checks.__doc__ or "", re.MULTILINE))
    modules = "".join(path.read_text() for path in Path(checks.__file__).parent.glob("*.py"))
    assert ids >= set(re.findall(r"django_dcron\.([EIW]\d{3})", modules))
    assert ids == set(re.findall(r"^\| ([EIW]\d{3}) \|", CHECKS, re.MULTILINE))


def test_every_documented_schedule_parses() -> None:
    table = SCHEDULES[SCHEDULES.index("## Forms") : SCHEDULES.index("## Fields")]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    texts = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    assert set(MACROS) < set(texts)
    for text in texts:
        parse_schedule(text, hash_key="job")
    (impossible,) = re.findall(r"within 50 years, such as `([^`]+)`", SCHEDULES)
    with pytest.raises(InvalidSchedule):
        parse_schedule(impossible)


def test_every_documented_cron_field_form_parses() -> None:
    table = SCHEDULES[SCHEDULES.index("| in a field |") : SCHEDULES.index("If both day fields")]
    forms = [
        text
        for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for text in re.findall(r"`([^`]+)`", cell)
    ]
    assert len(forms) >= 15
    for form in forms:
        day_of_month = re.search("[LW]", form) and form != "5L"
        day_of_week = form in {"5L", "5#2", "?"}
        text = "0 0 {} * *" if day_of_month else "0 0 * * {}" if day_of_week else "{} * * * *"
        parse_schedule(text.format(form), hash_key="job")
