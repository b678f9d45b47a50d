"""Pages or scripts use each class of the admin's style sheets, and sheets share their rules."""

import re
from pathlib import Path

import django_dcron

PACKAGE = Path(django_dcron.__file__).parent
GENERATED = ("dcron-is-", "dcron-health-", "dcron-choice-")
"""Prefixes of class names that end in the value of a variable."""


def test_every_styled_class_is_used() -> None:
    sheets = "".join(
        re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        for path in (PACKAGE / "static").rglob("*.css")
    )
    users = [
        *(PACKAGE / "templates").rglob("*.html"),
        *(PACKAGE / "static").rglob("*.js"),
        *(PACKAGE / "admin").rglob("*.py"),
    ]
    used = set(re.findall(r"dcron-[a-z_-]+", "".join(path.read_text() for path in users)))
    variables = set(re.findall(r"--(dcron-[a-z_-]+)", sheets))
    styled = set(re.findall(r"\.(dcron-[a-z_-]+)", sheets))
    unused = {name for name in styled - used - variables if not name.startswith(GENERATED)}
    assert unused <= {"dcron-enabled", "dcron-live", "dcron-timed_out"}


def test_one_sheet_that_every_page_loads_names_the_values_of_cards() -> None:
    sheets = (PACKAGE / "static").rglob("*.css")
    naming = [path.name for path in sheets if "attr(data-dcron-column)" in path.read_text()]
    assert naming == ["admin.css"]
