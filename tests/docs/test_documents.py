"""What the documents promise about names is held against the code."""

import ast
import re
from pathlib import Path

from django_dcron import checks
from django_dcron.conf import Settings
from django_dcron.domain.schedule import parse_schedule

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (ROOT / "docs" / "settings.md").read_text()
OBSERVABILITY = (ROOT / "docs" / "observability.md").read_text()
README = (ROOT / "README.md").read_text()


def test_every_setting_is_documented_and_no_other() -> None:
    documented = re.findall(r"^\| `(DCRON_\w+)` \|", SETTINGS, re.MULTILINE)
    assert documented == [setting.name for setting in Settings.all()]


def test_documented_durations_and_numbers_are_the_defaults() -> None:
    rows = dict(re.findall(r"^\| `(DCRON_\w+)` \| ([\d.]+)(?: s)? \|", SETTINGS, re.MULTILINE))
    numbers = {
        setting.name: float(getattr(setting.default, "total_seconds", lambda value=setting.default: value)())
        for setting in Settings.all()
        if setting.name in rows
    }
    assert {name: float(shown) for name, shown in rows.items()} == numbers
    assert len(rows) == 15


def test_every_system_check_is_documented() -> None:
    ids = set(re.findall(r"django_dcron\.([EW]\d{3})", Path(checks.__file__).read_text()))
    assert ids == set(re.findall(r"\b([EW]\d{3})\b", SETTINGS))


def test_every_schedule_in_the_readme_parses() -> None:
    table = README[README.index("## Schedules") : README.index("Daylight saving as")]
    texts = re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert len(texts) >= 12
    for text in texts:
        for schedule in text.split() if text.startswith("@hourly") else [text]:
            parse_schedule(schedule, hash_key="job")


def test_python_in_the_documents_is_python() -> None:
    for text in (README, SETTINGS, OBSERVABILITY):
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            ast.parse(block)
