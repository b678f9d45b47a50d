"""The examples and tables of docs/how-to/audit-log.md work and match the code."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from django.db.models.signals import post_save

from django_dcron import control
from django_dcron.conf import Settings
from django_dcron.management.commands.dcron import SUBCOMMANDS
from django_dcron.models import AuditAction, AuditEntry, AuditKind, Job, Via
from tests.docs.test_documents import ROOT
from tests.factories import make_idle_job

PAGE = (ROOT / "docs" / "how-to" / "audit-log.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

pytestmark = pytest.mark.django_db


def _run(example: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "audit-log.md", "exec"), names)  # noqa: S102
    return names


def test_documented_actions_kinds_and_ways_match_the_code() -> None:
    table = PAGE.split("| object | actions |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (\w+) \| (`.*) \|$", table, re.MULTILINE)
    documented = {kind: set(re.findall(r"`(\w+)`", actions)) for kind, actions in rows}
    assert set(documented) == set(AuditKind.values)
    assert set().union(*documented.values()) == set(AuditAction.values)
    (ways,) = re.findall(r"^\| via \| (.*) \|$", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", ways)) == set(Via.values)


def test_example_names_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    job = make_idle_job(name="nightly-report")
    acting, reading, _reverting, _forwarding = EXAMPLES
    user = SimpleNamespace(get_username=lambda: "ada")
    request = SimpleNamespace(user=user, META={"REMOTE_ADDR": "10.0.0.1"})

    assert _run(acting)["pause_reports"](request).status_code == 204
    _run(reading)

    entry = AuditEntry.objects.get(action="pause")
    assert (entry.actor, entry.address) == ("ada", "10.0.0.1")
    assert not Job.objects.get(pk=job.pk).enabled
    output = capsys.readouterr().out
    assert "ada" in output
    assert entry.reason in output


def test_example_reverts_the_latest_edit() -> None:
    job = make_idle_job(name="nightly-report")
    job.max_attempts = 4
    control.save(job)
    _run(EXAMPLES[2])
    assert Job.objects.get(pk=job.pk).max_attempts == 1


@pytest.mark.django_db(transaction=True)
def test_example_forwards_entries(
    caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    names = _run(EXAMPLES[3])
    request.addfinalizer(lambda: post_save.disconnect(names["forward"], sender=AuditEntry))
    caplog.set_level("INFO", "audit")

    make_idle_job(name="forwarded")

    assert [record.name for record in caplog.records if "forwarded" in record.message] == ["audit"]


def test_documented_commands_and_settings_exist() -> None:
    for command in re.findall(r"manage\.py dcron (\w+)", PAGE):
        assert command in SUBCOMMANDS
    for setting in re.findall(r"DCRON_(\w+)", PAGE):
        assert setting in vars(Settings)
