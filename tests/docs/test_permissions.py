"""The guide to the admin lists all permissions, and its code creates groups for all of them."""

import re

import pytest
from django.contrib.auth.models import Group

from tests.admin.test_permissions import OWN, VIEWS
from tests.docs.test_documents import ROOT

GUIDE = ROOT / "docs" / "how-to" / "admin.md"


def section() -> str:
    return GUIDE.read_text().split("## Permissions")[1].split("\n## ")[0]


def test_guide_lists_every_permission() -> None:
    """The row of the calendars also covers the limits."""
    listed = set(re.findall(r"`([a-z]+_[a-z_]+)`", section().split("No permission includes")[0]))
    assert listed | {name.replace("calendar", "limit") for name in listed} == {*VIEWS, *OWN}


@pytest.mark.django_db
def test_code_of_the_guide_creates_the_groups_again_without_changes() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", section(), re.DOTALL)
    for _time in range(2):
        exec(compile(code, "admin.md", "exec"), {})  # noqa: S102
        viewers, operators, editors = (
            set(Group.objects.get(name=name).permissions.values_list("codename", flat=True))
            for name in ("Job viewers", "Job operators", "Job editors")
        )
        assert viewers == {"view_dashboard", *VIEWS} - {"view_auditentry"}
        assert operators == viewers | {
            "trigger_job",
            "pause_job",
            "cancel_run",
            "rerun_run",
            "acknowledge_incident",
        }
        assert editors == {*VIEWS, *OWN}
