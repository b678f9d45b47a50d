"""Test the import of crontab files.

Each line becomes a job. Each command becomes an entry of ``DCRON_SHELL`` that acts like cron.
"""

import ast
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from django_dcron import control
from django_dcron.contrib.importers import crontab
from django_dcron.contrib.importers.comparison import compare_entries
from django_dcron.contrib.importers.names import name_digest, with_distinct_names
from django_dcron.contrib.importers.source_contents import SourceContents, SourceEntry
from django_dcron.contrib.importers.sources import FileFormat, file_format_of
from django_dcron.models import Job
from django_dcron.targets import MASK
from django_dcron.utils.docs_links import ALERTS_PAGE, DOCS
from tests.factories import make_job
from tests.management.calling import call

pytestmark = pytest.mark.django_db

USER_CRONTAB = r"""
SHELL=/bin/bash
MAILTO = "ops@example.com"
PATH="/opt/shop/bin:/usr/bin"

# Nightly, after the last order.
# Ask Ann.
30 3 * * mon-fri /opt/shop/bin/close-day --tax
*/5 * * * * cd /srv && ./import.sh >> log 2>&1

CRON_TZ=America/New_York
@daily report
@reboot start-things
"""


def read(text: str, **options: Any) -> SourceContents:
    return crontab.read(text, options.pop("timezone", "UTC"), **options)


def only(text: str, **options: Any) -> SourceEntry:
    (found,) = read(text, **options).entries
    return found


def output_of(argv: list[str], **options: Any) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, **options).stdout


def test_crontab_lines_become_jobs() -> None:
    contents = read(USER_CRONTAB, timezone="Europe/Berlin")
    jobs = {each.name: each for each in contents.entries}
    assert list(jobs) == ["close-day", "import", "report", "start-things"]
    close = jobs["close-day"].values
    assert (close["schedule"], close["timezone"]) == ("30 3 * * mon-fri", "Europe/Berlin")
    assert close["target"] == "shell:close-day"
    assert close["description"] == "Nightly, after the last order.\nAsk Ann."
    assert jobs["import"].values["description"] == ""
    assert (jobs["report"].values["schedule"], jobs["report"].values["timezone"]) == (
        "@daily",
        "America/New_York",
    )


def test_lines_of_manage_py_are_named_for_the_management_command() -> None:
    contents = read(
        "30 3 * * * cd /srv/shop && ./venv/bin/python manage.py clearsessions\n"
        "0 4 * * * /srv/venv/bin/python /srv/shop/manage.py send_invoices --all >> /tmp/log 2>&1\n"
        "0 5 * * * django-admin dumpdata\n"
        "0 6 * * * python report.py\n"
    )
    names = ["clearsessions", "send_invoices", "dumpdata", "report"]
    assert [each.name for each in contents.entries] == names
    assert sorted(contents.shell) == sorted(names[1:])
    assert contents.commands == {"clearsessions": []}
    (note,) = [note for note in contents.notes if "DCRON_COMMANDS" in note]
    assert "command:dumpdata" in note
    assert not any("DCRON_COMMANDS" in note for note in read(USER_CRONTAB).notes)


def test_commented_out_line_is_not_a_description() -> None:
    text = "# Nightly.\n#30 3 * * * old\n#@daily older\n# MAILTO=x\n30 4 * * * new\n"
    assert only(text).values["description"] == "Nightly."
    assert (
        only("#* * * * * root old\n* * * * * root new\n", system=True).values["description"] == ""
    )


@pytest.mark.parametrize(
    ("comments", "description"),
    [
        ("# Newsletter.\n#0 8 * * 1 newsletter\n# Invoices.\n", "Invoices."),
        (
            "# Backup of the shop.\n# RETENTION=7 days are kept\n# https://wiki/?job=backup\n",
            "Backup of the shop.\nhttps://wiki/?job=backup",
        ),
        (
            "# For example, you can run a backup at 5 a.m. every week with:\n"
            "# 0 5 * * 1 tar -zcf /var/backups/home.tgz /home/\n"
            "#\n"
            "# For more information see the manual pages of crontab(5) and cron(8)\n"
            "#\n"
            "# m h  dom mon dow   command\n",
            "",
        ),
        (
            "# Example of job definition:\n"
            "# .---------------- minute (0 - 59)\n"
            "# |  .------------- hour (0 - 23)\n"
            "# |  |  |  |  |\n"
            "# *  *  *  *  * user-name  command to be executed\n",
            "",
        ),
        (
            "# ┌───────────── minute (0 - 59)\n# │ ┌───────────── hour (0 - 23)\n# Nightly.\n",
            "Nightly.",
        ),
        ("# |     +----------- hour (0 - 23)\n# +------------- min (0 - 59)\n", ""),
    ],
)
def test_comments_of_templates_and_disabled_lines_describe_no_job(
    comments: str, description: str
) -> None:
    assert only(f"{comments}30 4 * * * new\n").values["description"] == description


def test_description_with_several_lines_is_shown_in_one_line(
    tmp_path: Path, settings: Settings
) -> None:
    settings.DCRON_COMMANDS = ["check"]
    file = tmp_path / "crontab"
    file.write_text("# One.\n0 1 * * * python manage.py check\n")
    assert call("import", str(file), "--apply").code == 0
    file.write_text("# One.\n# Two.\n0 1 * * * python manage.py check\n")
    changed = call("import", str(file)).out.splitlines()
    assert r"change check description: One. -> One.\nTwo." in changed
    job = Job.objects.get()
    job.description = "Mine.\nAsk Ann."
    control.save(job)
    kept = call("import", str(file)).out.splitlines()
    assert r"kept check description: Mine.\nAsk Ann. (changed here; source: One.\nTwo.)" in kept


def test_line_is_identified_by_its_command_and_file() -> None:
    contents = crontab.read("30 3 * * * old\n", "UTC", path="/etc/crontab")
    changed = crontab.read("@daily old\n30 3 * * * old --all\n", "UTC", path="/etc/crontab")
    assert contents.source == "crontab /etc/crontab"
    assert contents.entries[0].key == changed.entries[0].key != changed.entries[1].key


def test_reboot_line_of_a_crontab_is_omitted() -> None:
    found = {each.name: each for each in read(USER_CRONTAB).entries}["start-things"]
    assert (found.refused, found.values) == ("", {})
    assert "systemd" in found.omitted


@pytest.mark.parametrize(
    ("line", "count"), [("* * 5/2 backup", "3"), ("* * * * backup", "4"), ("5 x", "1"), ("x y", "")]
)
def test_line_with_too_few_fields_is_refused_with_their_number(line: str, count: str) -> None:
    (found,) = read(line).entries
    assert repr(line) in found.refused
    assert "".join(re.findall(r"(\d+) time field", found.refused)) == count


@pytest.mark.django_db
def test_import_succeeds_if_lines_are_only_omitted(tmp_path: Path) -> None:
    path = tmp_path / "crontab.txt"
    path.write_text("@reboot manage.py warm_up\n")
    result = call("import", str(path), "--apply", "--json")
    assert (result.code, result.json["counts"]["omitted"]) == (0, 1)
    assert result.json["shell"] == {}
    assert not any("DCRON_COMMANDS" in note for note in result.json["notes"])


def test_command_has_its_shell_and_environment() -> None:
    assert read(USER_CRONTAB).shell["import"] == [
        "/usr/bin/env",
        "PATH=/opt/shop/bin:/usr/bin",
        "/bin/bash",
        "-c",
        "cd /srv && ./import.sh >> log 2>&1",
    ]


def test_job_of_a_shell_call_keeps_its_name_and_target(tmp_path: Path, settings: Settings) -> None:
    """A job that was named for the shell is recognized by its key."""
    file = tmp_path / "crontab"
    line = "0 1 * * * sh -c './backup.sh nightly'"
    settings.DCRON_SHELL = {}
    apply_lines(file, settings, [line])
    job = Job.objects.get()
    assert (job.name, job.target) == ("backup", "shell:backup")
    assert job.import_key == f"sh {name_digest(str(['/bin/sh', '-c', line[10:]]))}"
    job.name, job.imported = "sh", {**job.imported, "name": "sh", "as": "sh"}
    job.save()
    apply_lines(file, settings, [line])
    assert Job.objects.get().name == "sh"


def test_notes_name_the_option_only_if_it_was_not_passed(tmp_path: Path) -> None:
    file = tmp_path / "crontab"
    file.write_text("MAILTO=ops@example.com\n0 1 * * * backup\n")
    zone = "in the time zone UTC"
    assert zone in (default := call("import", str(file)).out)
    assert zone in (chosen := call("import", str(file), "--timezone", "UTC").out)
    assert ["--timezone" in text for text in (default, chosen)] == [True, False]
    assert f"{DOCS}{ALERTS_PAGE}" in default


def test_line_of_another_file_does_not_repeat_a_renamed_job(
    tmp_path: Path, settings: Settings
) -> None:
    first, second = tmp_path / "crontab", tmp_path / "saved"
    settings.DCRON_SHELL = {}
    apply_lines(first, settings, LINES[:1])
    job = Job.objects.get()
    job.name = "nightly backup"
    control.save(job)
    second.write_text(f"{LINES[0]}\n")
    done = call("import", str(second), "--apply")
    assert done.code == 1
    (line,) = [line for line in done.out.splitlines() if line.startswith("conflict ")]
    assert "nightly backup" in line
    assert str(first) in line
    assert call("import", str(second), "--apply", "--shadow").code == 1
    assert Job.objects.count() == 1

    second.write_text("0 2 * * * /a/backup.sh\n")  # another schedule
    assert call("import", str(second)).code == 0
    second.write_text(f"{LINES[0]}\n")
    assert call("import", str(second), "--namespace", "two").code == 0
    job.schedule = "15 3 * * *"
    control.save(job)
    assert call("import", str(second)).code == 1, "edited here since the import"
    second.write_text(f"{LINES[0]}\n")
    control.pause(job, "ask Ann")
    assert call("import", str(second), "--apply").code == 0
    assert Job.objects.count() == 2


def test_mailto_is_reported_once() -> None:
    assert sum("MAILTO" in note for note in read(USER_CRONTAB).notes) == 1


def test_tz_applies_to_commands_and_not_to_times() -> None:
    contents = read("TZ=Asia/Tokyo\n0 9 * * * report\n")
    assert contents.entries[0].values["timezone"] == "UTC"
    assert contents.shell["report"][:2] == ["/usr/bin/env", "TZ=Asia/Tokyo"]
    assert "CRON_TZ" in contents.notes[0]


def test_cron_tz_that_some_crons_ignore_is_reported() -> None:
    def is_reported(text: str) -> bool:
        return any("Debian" in note for note in read(text, timezone="Europe/Berlin").notes)

    assert is_reported(USER_CRONTAB)
    assert not is_reported("CRON_TZ=Europe/Berlin\n@daily x\n"), "the machine's own time zone"
    assert not is_reported("@daily x\n")


def test_percent_signs_start_the_standard_input() -> None:
    r"""The first ``%`` starts the standard input, and others end its lines.

    ``\%`` is a literal percent sign (see crontab(5)).
    """
    contents = read(r"0 0 1 * * cat; date -d @0 -u +\%Y # the end%one%it's two")
    assert output_of(contents.shell["cat"]) == "one\nit's two\n1970\n"


def test_escaped_percent_sign_is_literal() -> None:
    assert read(r"0 0 * * * date +\%H").shell["date"] == ["/bin/sh", "-c", "date +%H"]


def test_user_field_of_a_system_crontab_is_reported() -> None:
    found = only("17 *\t* * *   root    cd / && run-parts --report /etc/cron.hourly", system=True)
    assert (found.name, found.values["schedule"]) == ("run-parts", "17 * * * *")
    assert "user root" in found.warnings[0]


def test_line_that_names_a_user_needs_the_format_of_system_crontabs() -> None:
    text = "17 * * * * root cd /srv && ./import.sh\n"
    (note,) = [note for note in read(text).notes if "user" in note]
    assert "root" in note
    assert "--format system-crontab" in note
    assert any("root" in note for note in read("17 * * * * root mail ann%yes\n").notes)
    assert not any("--format" in note for note in read(text, system=True).notes)
    assert not any("--format" in note for note in read(USER_CRONTAB).notes)


@pytest.mark.parametrize(
    ("lines", "warns"),
    [
        ("@daily ./backup.sh", True),
        ("@daily cd shop && make report", True),
        ("@daily venv/bin/python /srv/report.py", True),
        ("@daily cd ~/shop && make report", True),
        ("@daily cp /srv/a ${HOME}/b", True),
        ("HOME=/srv\n@daily cp /srv/a ~/b", False),
        ("HOME=/srv\n@daily ./backup.sh", True),
        ("@daily ./backup.sh%yes", True),
        (r"@daily ./backup.sh +\%F", True),
        ("@daily mail ann%Look at ~/log", False),
        ("@daily cd /srv/shop && ./backup.sh", False),
        ("@daily curl https://shop.example/~ann", False),
    ],
)
def test_command_that_depends_on_the_home_directory_is_reported(lines: str, warns: bool) -> None:
    assert any("absolute paths" in warning for warning in only(lines).warnings) is warns


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/etc/crontab", FileFormat.SYSTEM_CRONTAB),
        ("/etc/cron.d/shop", FileFormat.SYSTEM_CRONTAB),
        ("/tmp/crontab", FileFormat.CRONTAB),
        ("jobs.YAML", FileFormat.YAML),
        ("jobs.json", FileFormat.JSON),
        ("-", FileFormat.CRONTAB),
    ],
)
def test_file_format_is_detected_by_path(path: str, form: FileFormat) -> None:
    assert file_format_of(path) is form


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("* * * * *", "not a time and a command"),
        ("@yearly", "not a time and a command"),
        ("61 * * * * x", "out of range"),
        ("0~30 * * * * x", "H(0-29)"),
        ("H 3 * * * x", "doesn't support H"),
        ("@every_minute x", "not a cron schedule"),
        ("@every 5m x", "not a cron schedule"),
        ("0 0 30 2 * x", "never matches"),
        ("CRON_TZ=Moon/Base\n0 0 * * * x", "Moon/Base"),
    ],
)
def test_invalid_lines_are_refused(line: str, message: str) -> None:
    assert message in only(line).refused


def test_step_without_a_range_is_reported() -> None:
    assert "5/15" in only("5/15 * * * * x").warnings[0]


LINES = [
    "0 1 * * * /a/backup.sh",
    "0 2 * * * /b/backup.sh",
    "0 3 * * * /a/backup.sh",
    "0 4 * * * other",
]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/srv/backup.sh --all", "backup"),
        ("python3 /srv/report.py", "report"),
        ("/usr/bin/env bash tidy.sh", "tidy"),
        ("python -c 1", "python"),
        ("sh", "sh"),
        ("/usr/bin/python3.11", "python3.11"),
        ("node.js", "node"),
        ("sh -c 'cd /srv && ./backup.sh nightly'", "backup"),
        ('/bin/bash -lc "exec env A=1 /srv/bin/tidy.py --all"', "tidy"),
        ("cd /srv && sh -e -c 'sync'", "sync"),
        ("sh -c 'python manage.py check'", "check"),
        ("sh -c ''", "sh"),
        ("flock -n /tmp/tidy.lock /srv/tidy.py --all", "tidy"),
        ("/usr/bin/flock -w 10 /tmp/a.lock -c '/srv/backup.sh --all'", "backup"),
        ("cd /srv && nice -n 10 ionice -c3 ./tidy.py", "tidy"),
        ("timeout -k 5 1h chronic python report.py", "report"),
        ("timeout 300 sh -c './backup.sh nightly'", "backup"),
        ("flock -n /tmp/check.lock ./manage.py check", "check"),
        ("flock", "flock"),
        ("bash -c 'set -euo pipefail; ./backup.sh'", "backup"),
        (". /srv/env;/srv/backup.sh", "backup"),
        ("mail -s cron ann%Please run manage.py migrate", "mail"),
        ("timeout -s KILL 5m job", "job"),
        ("timeout -sKILL -k5 --foreground 1.5h job", "job"),
        ("timeout --kill-after 5 1h job", "job"),
        ("ionice -c idle job", "job"),
        ("ionice -c 2 -n7 -t job", "job"),
        (". /etc/profile; /srv/nightly.sh", "nightly"),
        ("source venv/bin/activate && python report.py", "report"),
        (". /srv/.env && pg_dump shop", "pg_dump"),
        ("cd /srv; set -a; . .env; set +a; source env/bin/activate && ./tidy.py", "tidy"),
        ("7z a /srv/backup.7z /srv", "7z"),
    ],
)
def test_line_is_named_for_its_script(command: str, name: str) -> None:
    assert only(f"@daily {command}").name == name


def test_names_do_not_depend_on_the_order_of_lines() -> None:
    def targets(text: list[str]) -> dict[str, str]:
        entries = with_distinct_names(read("\n".join(text)).entries)
        assert len({each.name for each in entries}) == len({each.key for each in entries}) == 4
        return {each.name: each.values["target"] for each in entries}

    assert targets(LINES) == targets(LINES[::-1])
    found = targets(LINES)
    # A command with two schedules needs one entry of DCRON_SHELL.
    assert len(set(found.values())) == 3
    assert found["other"] == "shell:other"


def test_job_has_the_name_of_its_command_in_dcron_shell() -> None:
    entries = with_distinct_names(read("\n".join(LINES[:2])).entries)
    assert [f"shell:{each.name}" for each in entries] == [each.values["target"] for each in entries]


def apply_lines(file: Path, settings: Settings, lines: list[str]) -> dict[str, Any]:
    """Import the lines as a person does who pastes the entries of ``DCRON_SHELL``."""
    file.write_text("\n".join(lines) + "\n")
    shell = call("import", str(file), "--json").json["shell"]
    settings.DCRON_SHELL = {**settings.DCRON_SHELL, **shell}
    result = call("import", str(file), "--apply", "--json")
    assert result.code == 0, result.out
    return dict(result.json)


@pytest.mark.parametrize("added", LINES[1:])
@pytest.mark.parametrize("first", [True, False])
def test_job_keeps_its_name_and_target_if_a_line_is_added_and_removed(
    tmp_path: Path, settings: Settings, added: str, first: bool
) -> None:
    file = tmp_path / "crontab"
    settings.DCRON_SHELL = {}
    apply_lines(file, settings, LINES[:1])
    job = Job.objects.get()
    assert (job.name, job.target) == ("backup", "shell:backup")
    both = [added, LINES[0]] if first else [LINES[0], added]
    applied = apply_lines(file, settings, both)
    assert (applied["counts"]["create"], applied["gone"]) == (1, [])
    kept = Job.objects.get(pk=job.pk)
    assert (kept.name, kept.target) == ("backup", "shell:backup")
    assert set(Job.objects.values_list("schedule", flat=True)) == {each[:9] for each in both}
    applied = apply_lines(file, settings, both)
    assert applied["counts"]["same"] == 2, "a repeated import changes nothing"
    applied = apply_lines(file, settings, LINES[:1])
    assert (applied["counts"]["create"], len(applied["gone"])) == (0, 1)
    assert Job.objects.get(pk=job.pk).schedule == "0 1 * * *"


def test_changed_line_keeps_its_job(tmp_path: Path, settings: Settings) -> None:
    """As the refusal and the migration guide say."""
    file = tmp_path / "crontab"
    settings.DCRON_SHELL = {}
    apply_lines(file, settings, ["A=1", "0 1 * * * /srv/sync --a"])
    job = Job.objects.get()
    file.write_text("A=2\n0 1 * * * /srv/sync --a\n")
    refused = call("import", str(file))
    assert (refused.code, "If this line has changed, remove that entry" in refused.out) == (1, True)
    settings.DCRON_SHELL = {}
    settings.DCRON_SHELL = pasted(call("import", str(file)).out)["DCRON_SHELL"]
    again = call("import", str(file), "--apply", "--json").json
    assert (again["counts"]["same"], again["gone"]) == (1, [])
    assert Job.objects.get().pk == job.pk


def test_entry_that_reads_a_variable_from_the_environment_fits_its_new_value(
    tmp_path: Path, settings: Settings
) -> None:
    """The settings are read again with the new environment, as the migration guide says."""
    file = tmp_path / "crontab"
    settings.DCRON_SHELL = {}
    lines = ["0 1 * * * /srv/sync", "0 2 * * * /srv/backup"]
    apply_lines(file, settings, ["PGPASSWORD=old", *lines])
    settings.DCRON_SHELL = {
        name: [part.replace("PGPASSWORD=old", "PGPASSWORD=new") for part in argv]
        for name, argv in settings.DCRON_SHELL.items()
    }
    file.write_text("\n".join(["PGPASSWORD=new", *lines]) + "\n")
    again = call("import", str(file), "--apply", "--json")
    assert (again.code, again.json["gone"]) == (0, [])
    assert again.json["counts"]["same"] == Job.objects.count() == 2


def test_one_changed_line_of_several_with_its_program_keeps_its_job(
    tmp_path: Path, settings: Settings
) -> None:
    settings.DCRON_SHELL = {}
    apply_lines(tmp_path / "crontab", settings, LINES[:2])
    jobs = {*Job.objects.values_list("pk", "schedule")}
    applied = apply_lines(tmp_path / "crontab", settings, [f"{LINES[0]} --all", LINES[1]])
    assert (applied["counts"]["change"], applied["gone"]) == (1, [])
    assert {*Job.objects.values_list("pk", "schedule")} == jobs


@pytest.mark.parametrize("remove", [control.pause, control.delete])
def test_lines_of_one_program_that_change_at_once_become_other_jobs(
    tmp_path: Path, settings: Settings, remove: Any
) -> None:
    """The old jobs are paused or deleted after the preview, as the migration guide says."""
    file = tmp_path / "crontab"
    settings.DCRON_SHELL = {}
    apply_lines(file, settings, ["A=1", *LINES[:2]])
    file.write_text("\n".join(["A=2", *LINES[:2]]))
    shown = call("import", str(file), "--json").json
    settings.DCRON_SHELL = settings.DCRON_SHELL | shown["shell"]
    old = [Job.objects.get(name=gone["name"]) for gone in shown["gone"]]
    assert len(old) == 2
    for job in old:
        remove(job)
    applied = call("import", str(file), "--apply", "--json")
    assert (applied.code, applied.json["counts"]["create"]) == (0, 2)
    enabled = Job.objects.filter(enabled=True).values_list("schedule", flat=True)
    assert sorted(enabled) == ["0 1 * * *", "0 2 * * *"]


@pytest.mark.parametrize("remove", [control.pause, control.delete])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["--a"], ["--a2", "--b"]),
        (["--a", "--b"], ["--a --b"]),
        (["--a", "--b", "--c"], ["--a2", "--b"]),
    ],
    ids=["changed and added", "merged", "changed and removed"],
)
def test_lines_replace_the_jobs_that_are_paused_or_deleted_after_the_preview(
    tmp_path: Path, settings: Settings, remove: Any, before: list[str], after: list[str]
) -> None:
    """The number of lines of the program changes together with a command."""
    file = tmp_path / "crontab"
    settings.DCRON_SHELL = {}
    apply_lines(file, settings, [f"0 {n} * * * /srv/sync {each}" for n, each in enumerate(before)])
    file.write_text("".join(f"{n} 9 * * * /srv/sync {each}\n" for n, each in enumerate(after)))
    shown = call("import", str(file), "--json").json
    settings.DCRON_SHELL = settings.DCRON_SHELL | shown["shell"]
    for gone in shown["gone"]:
        remove(Job.objects.get(name=gone["name"]))
    assert shown["gone"]
    assert call("import", str(file), "--apply").code == 0
    enabled = Job.objects.filter(enabled=True).values_list("schedule", flat=True)
    assert sorted(enabled) == [f"{n} 9 * * *" for n in range(len(after))]


def test_command_under_another_name_is_imported(tmp_path: Path, settings: Settings) -> None:
    """As the refusal says."""
    file = tmp_path / "crontab"
    file.write_text("0 1 * * * /srv/sync\n")
    settings.DCRON_SHELL = {"sync": ["/opt/other/sync"]}
    refused = call("import", str(file))
    assert refused.code == 1
    (argv,) = re.findall(r"under another name: (\[.*?\])", refused.out)
    settings.DCRON_SHELL = {**settings.DCRON_SHELL, "sync-shop": ast.literal_eval(argv)}
    assert call("import", str(file), "--apply").code == 0
    job = Job.objects.get()
    assert (job.target, job.enabled) == ("shell:sync-shop", True)


def test_entry_with_another_environment_keeps_its_job(tmp_path: Path, settings: Settings) -> None:
    """A person adds to the beginning of the entries what the import's note says."""
    file = tmp_path / "crontab"
    settings.DCRON_SHELL = {}
    file.write_text("\n".join(["MAILHOST=a", *LINES]))
    document = call("import", str(file), "--json").json
    (note,) = [note for note in document["notes"] if "DJANGO_SETTINGS_MODULE" in note]
    prefix = re.findall(r"'([^']+)'", note)
    assert prefix[:3] == ["/usr/bin/env", "-u", "DJANGO_SETTINGS_MODULE"]
    apply_lines(file, settings, ["MAILHOST=a", *LINES])
    before = {*Job.objects.values_list("pk", "name", "target")}
    settings.DCRON_SHELL = {name: [*prefix, *argv] for name, argv in document["shell"].items()}
    for lines in (LINES, LINES[:1], LINES):
        file.write_text("\n".join(["MAILHOST=a", *lines]))
        again = call("import", str(file), "--apply", "--json").json
        assert again["counts"]["same"] == len(lines)
    assert {*Job.objects.values_list("pk", "name", "target")} == before


def test_prefixed_entry_of_a_line_with_variables_is_not_that_of_one_without(
    tmp_path: Path, settings: Settings
) -> None:
    prefix = ["/usr/bin/env", "-u", "A", "/usr/bin/env", "SHOP=a"]
    settings.DCRON_SHELL = {"sync": [*prefix, "/bin/sh", "-c", "/srv/sync"]}
    assert "another command named 'sync'" in only("0 1 * * * /srv/sync").refused
    assert not only("SHOP=a\n0 1 * * * /srv/sync").refused


def make_project(directory: Path, text: str = "same") -> Path:
    directory.mkdir(parents=True)
    (directory / "manage.py").write_text(text)
    return directory


def test_line_of_another_project_stays_in_the_shell(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two projects that ``startproject config .`` wrote have the same ``manage.py``."""
    own, other = make_project(tmp_path / "own"), make_project(tmp_path / "other")
    (tmp_path / "link").symlink_to(own)
    monkeypatch.chdir(own)
    monkeypatch.setenv("HOME", str(tmp_path))
    settings.DCRON_COMMANDS = ["check"]
    for call_text in (
        f"cd {other} && venv/bin/python manage.py",
        f"{other}/manage.py",
        f"cd {tmp_path} && cd other && python manage.py",
        "cd ~/other && python manage.py",
        "python ~/other/manage.py",
    ):
        for options in ({}, {"without_shell": True}):
            contents = read(f"0 1 * * * {call_text} check", **options)
            (entry,) = contents.entries
            assert entry.values["target"] == "shell:check"
            assert str(own) in entry.warnings[0]
            assert str(other) in entry.warnings[0]
            assert not any("without a shell" in note for note in contents.notes)
    for directory in (own, tmp_path / "link", "/srv/elsewhere", f"/{'x' * 300}"):
        entry = only(f"0 1 * * * cd {directory} && python manage.py check")
        assert entry.values["target"] == "command:check"
        assert f"its directory {directory}" in entry.warnings[0]


def test_line_of_a_project_that_is_closed_to_this_user_stays_in_the_shell(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DCRON_COMMANDS = ["check"]
    closed = make_project(tmp_path / "closed")
    stat = Path.stat

    def stat_or_refuse(path: Path, **options: Any) -> os.stat_result:
        if path.is_relative_to(closed):
            raise PermissionError
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", stat_or_refuse)
    line = f"0 1 * * * cd {closed} && python manage.py check"
    monkeypatch.chdir(make_project(tmp_path / "own"))
    for options in ({}, {"without_shell": True}):
        entry = only(line, **options)
        assert entry.values["target"] == "shell:check"
        assert f"{closed}, which this user can't access" in entry.warnings[0]
        assert f"import in {closed}" not in entry.warnings[0]
    monkeypatch.chdir(tmp_path)
    assert only(line).values["target"] == "command:check", "this project has no manage.py"


@pytest.mark.parametrize(
    ("called", "own", "target"),
    [
        ("shop/releases/1", "shop/releases/2", "command:check"),
        ("shop/current/src", "shop/releases/2/src", "command:check"),
        ("releases/crm", "releases/shop", "shell:check"),
        ("crm/releases/1", "shop/releases/2", "shell:check"),
        ("shop/releases/1/crm", "shop/releases/2/shop", "shell:check"),
        ("shop/releases/1", "shop/releases/2/src", "shell:check"),
        ("all/releases/crm", "all/releases/shop", "shell:check"),
    ],
)
def test_releases_of_a_project_are_one_project(
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    called: str,
    own: str,
    target: str,
) -> None:
    settings.DCRON_COMMANDS = ["check"]
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/current").symlink_to("releases/1")
    (tmp_path / "all").mkdir()
    (tmp_path / "all/current").symlink_to("../shop")
    make_project(tmp_path / called.replace("current", "releases/1"))
    monkeypatch.chdir(make_project(tmp_path / own, "another version"))
    entry = only(f"0 1 * * * cd {tmp_path / called} && python manage.py check")
    assert entry.values["target"] == target


@pytest.mark.parametrize("options", [(), ("--shadow",)], ids=["job", "shadow"])
def test_imported_call_keeps_its_target_in_another_directory(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    settings.DCRON_COMMANDS = ["check"]
    file = tmp_path / "crontab"
    own = make_project(tmp_path / "own")
    command = f"cd {own} && python manage.py check"
    file.write_text(f"0 1 * * * {command}\n0 2 * * * {command}\n")
    monkeypatch.chdir(own)
    assert call("import", str(file), "--apply", *options).code == 0
    monkeypatch.chdir(make_project(tmp_path / "copy"))
    first = Job.objects.get(schedule="0 1 * * *")
    assert call("import", str(file), "--apply").code == 0
    assert {*Job.objects.values_list("target", flat=True)} == {"command:check"}
    control.delete(first)  # the key of the second line contains a number
    assert call("import", str(file), "--apply").code == 0
    assert Job.objects.get().target == "command:check"
    file.write_text(f"0 1 * * * {command} --deploy\n")
    assert "shell:check" in call("import", str(file)).out, "another command is another call"


@pytest.mark.parametrize("first", [(), ("--disabled",)], ids=["new", "paused"])
def test_shadow_of_a_line_becomes_a_job_only_without_shadow_and_disabled(
    tmp_path: Path, settings: Settings, first: tuple[str, ...]
) -> None:
    """Until then, cron runs the line."""
    settings.DCRON_COMMANDS = ["check"]
    file = tmp_path / "crontab"
    file.write_text("0 1 * * * python manage.py check\n")
    for mode in (*first, "--shadow", "--disabled"):
        assert call("import", str(file), "--apply", mode).code == 0
    job = Job.objects.get()
    assert (job.target, job.enabled) == ("shadow:command:check", True)
    assert call("import", str(file), "--apply").code == 0
    job.refresh_from_db()
    assert (job.target, job.enabled) == ("command:check", True)


def test_line_is_imported_although_a_job_of_a_crontab_has_no_import_key(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import takes the key away from a job if another entry has it."""
    settings.DCRON_COMMANDS = ["check"]
    make_job(target="command:check", import_source="crontab x", import_key=None)
    monkeypatch.chdir(make_project(tmp_path / "own"))
    other = make_project(tmp_path / "other")
    assert only(f"0 1 * * * cd {other} && python manage.py check").values["target"] == "shell:check"


@pytest.mark.parametrize("options", [(), ("--shadow",)], ids=["job", "shadow"])
def test_line_of_another_file_does_not_repeat_a_call_in_another_directory(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    settings.DCRON_COMMANDS = ["check"]
    settings.DCRON_SHELL = {}
    first, second = tmp_path / "crontab", tmp_path / "saved"
    own = make_project(tmp_path / "own")
    for file in (first, second):
        file.write_text(f"0 1 * * * cd {own} && python manage.py check\n")
    monkeypatch.chdir(own)
    assert call("import", str(first), "--apply", *options).code == 0
    job = Job.objects.get()
    job.name = "nightly check"
    control.save(job)
    monkeypatch.chdir(make_project(tmp_path / "copy"))
    (plan,) = call("import", str(second), "--json").json["jobs"]
    assert plan["outcome"] == "conflict"
    assert "nightly check" in plan["reasons"][0]


def test_printed_settings_are_explained_only_if_there_are_any(settings: Settings) -> None:
    text = "API_TOKEN=abc\n0 1 * * * send --all\n"
    contents = read(text)
    assert any("API_TOKEN" in note for note in contents.notes)
    assert any("DJANGO_SETTINGS_MODULE" in note for note in contents.notes)
    settings.DCRON_SHELL = contents.shell
    assert not any("DCRON_SHELL" in note for note in read(text).notes)


def test_command_that_needs_a_shell_is_named_with_without_shell(settings: Settings) -> None:
    contents = read("0 0 * * * python manage.py check $TAG", without_shell=True)
    (note,) = [note for note in contents.notes if "need a shell" in note]
    assert "check" in note
    assert "--without-shell" not in note


def test_repeated_option_of_a_call_is_listed_once(settings: Settings) -> None:
    settings.DCRON_COMMANDS = []
    contents = read("0 0 * * * python manage.py check --tag=models --tag=urls")
    assert contents.commands == {"check": ["--tag"]}


@pytest.mark.parametrize(
    "option", ["--password=hunter2", "--password hunter2", "--password  hunter2", "-phunter2"]
)
def test_note_about_the_shell_does_not_show_secrets(option: str, settings: Settings) -> None:
    settings.DCRON_COMMANDS = []
    notes = read(f"0 0 * * * python manage.py check {option}").notes
    (note,) = [note for note in notes if "in a shell instead" in note]
    assert "hunter2" not in note
    assert "'...'" in note


def test_job_follows_its_line_if_the_schedule_changes(tmp_path: Path, settings: Settings) -> None:
    file = tmp_path / "crontab"
    settings.DCRON_SHELL = {}
    apply_lines(file, settings, LINES[:2])
    names = dict(Job.objects.values_list("pk", "name"))
    assert all(name.startswith("backup-") for name in names.values())
    applied = apply_lines(file, settings, ["0 9 * * * /a/backup.sh", LINES[1]])
    assert (applied["counts"]["change"], applied["counts"]["same"]) == (1, 1)
    assert dict(Job.objects.values_list("pk", "name")) == names


def test_repeated_import_logs_no_change_without_a_field(tmp_path: Path, settings: Settings) -> None:
    file = tmp_path / "crontab"
    settings.DCRON_SHELL = {}
    apply_lines(file, settings, LINES[:1])
    job = Job.objects.get()
    job.schedule = "5 5 * * *"
    control.save(job)
    applied = apply_lines(file, settings, ["0 9 * * * /a/backup.sh"])
    assert applied["counts"]["kept"] == 1
    applied = apply_lines(file, settings, ["5 5 * * * /a/backup.sh"])
    assert applied["counts"]["same"] == 1
    logged = call("audit", "--action", "change", "--json").json["entries"]
    assert [entry["after"] for entry in logged] == [{"schedule": "5 5 * * *"}]


def test_deleted_job_does_not_hide_other_line_with_its_name(
    tmp_path: Path, settings: Settings
) -> None:
    file = tmp_path / "crontab"
    settings.DCRON_SHELL = {}
    apply_lines(file, settings, LINES[:1])
    control.delete(Job.objects.get())
    applied = apply_lines(file, settings, LINES[:2])
    assert (applied["counts"]["create"], applied["counts"]["deleted here"]) == (1, 1)
    assert Job.objects.get().schedule == "0 2 * * *"


def pasted(output: str, **scope: Any) -> dict[str, Any]:
    """Return the settings after a person pasted the ones that the output shows."""
    found = re.findall(r"^DCRON_\w+ = (?:\[.*\]|\{\n(?: {4}.*\n)*\})$", output, re.MULTILINE)
    exec("\n".join(found), scope)  # noqa: S102 (as if pasted into the settings)
    return scope


def test_printed_settings_are_complete(tmp_path: Path, settings: Settings) -> None:
    settings.DCRON_SHELL = {"old": ["secret"]}
    settings.DCRON_COMMANDS = ["migrate"]
    file = tmp_path / "crontab"
    file.write_text("@daily /a/backup.sh\n@hourly python manage.py clearsessions\n")
    shown = call("import", str(file)).out
    assert "secret" not in shown
    scope = pasted(shown, DCRON_SHELL=settings.DCRON_SHELL)
    assert set(scope["DCRON_SHELL"]) == {"old", "backup"}
    assert scope["DCRON_COMMANDS"] == ["migrate", "clearsessions"]
    file.write_text("@hourly python manage.py check --tag=models\n@daily manage.py check app\n")
    scope = pasted(call("import", str(file)).out, DCRON_SHELL=settings.DCRON_SHELL)
    assert scope["DCRON_COMMANDS"]["migrate"] == []
    settings.DCRON_COMMANDS = scope["DCRON_COMMANDS"]
    shown = call("import", str(file), "--apply").out
    assert "DCRON_COMMANDS = " not in shown
    assert "shell:" not in shown


def test_crontab_is_imported_without_notes_after_its_settings_are_pasted(
    tmp_path: Path, settings: Settings
) -> None:
    file = tmp_path / "crontab"
    file.write_text("@daily /a/backup.sh\n@hourly python manage.py clearsessions\n@reboot x\n")
    first = call("import", str(file), "--timezone", "UTC")
    assert first.out.startswith("! 2 entries need the settings")
    scope = pasted(first.out)
    settings.DCRON_SHELL, settings.DCRON_COMMANDS = scope["DCRON_SHELL"], scope["DCRON_COMMANDS"]
    second = call("import", str(file), "--timezone", "UTC", "--apply")
    assert "command:clearsessions" in second.out
    assert "settings" not in second.out
    assert "DCRON_" not in call("import", str(file), "--timezone", "UTC").out


@pytest.mark.parametrize(
    ("command", "target", "args"),
    [
        ("cd /srv/shop && .venv/bin/python manage.py check", "command:check", []),
        ("/srv/shop/manage.py check --tag models", "command:check", ["--tag", "models"]),
        ("python3.11 manage.py check --tag=models", "command:check", ["--tag=models"]),
        ("python manage.py check --tag a >/dev/null 2>&1", "command:check", ["--tag", "a"]),
        ("python manage.py check 1> /dev/null", "command:check", []),
        ("python manage.py check &>/dev/null", "command:check", []),
        ("python manage.py check >> /tmp/log", "shell:check", []),
        ("python manage.py check x>/dev/null", "shell:check", []),
        ("python manage.py check 2>/dev/null; reboot", "shell:check", []),
        ("python manage.py check $TAG", "shell:check", []),
        ("python manage.py check; reboot", "shell:check", []),
        ("cd $(reboot) && python manage.py check", "shell:check", []),
        ("python manage.py check%input", "shell:check", []),
        ("python manage.py check --settings=other", "shell:check", []),
        ("python manage.py migrate", "command:migrate", []),
        ("python manage.py of_another_project", "shell:of_another_project", []),
    ],
)
def test_plain_call_of_an_allowed_management_command_needs_no_shell(
    settings: Settings, command: str, target: str, args: list[str]
) -> None:
    settings.DCRON_COMMANDS = {"check": ["--tag"]}
    entry = only(f"0 0 * * * {command}")
    assert (entry.values["target"], entry.values["args"]) == (target, args)
    with_path = only(f"PATH=/usr/bin:/bin\n0 0 * * * {command}")
    assert with_path.values["target"] == target
    with_variable = only(f"DJANGO_SETTINGS_MODULE=other\n0 0 * * * {command}")
    assert with_variable.values["target"].startswith("shell:")


@pytest.mark.parametrize(
    ("command", "args", "omitted"),
    [
        ("cd /srv && python manage.py check >> /tmp/log 2>&1", [], "its redirection to /tmp/log"),
        ("cd /srv; A=1 B='2 3' python -u manage.py check", [], "its variable A, its variable B"),
        ("flock -n /tmp/x.lock python manage.py check", [], "its lock /tmp/x.lock"),
        ("nice -n 10 ionice -c3 uv run manage.py check", [], "its nice -n 10, its ionice -c3"),
        (". env/bin/activate && python manage.py check", [], ""),
        (
            "python manage.py check --settings=a.b --tag 'a b' --pythonpath /x",
            ["--tag", "a b"],
            "its --settings, its --pythonpath",
        ),
        ('/srv/bin/django-admin check --tag="a b" &>/dev/null', ["--tag=a b"], "its redirection"),
        ("python manage.py check 2>/tmp/err", [], "its redirection to /tmp/err"),
        ("python manage.py check a 1>>/tmp/log 2>&1", ["a"], "its redirection to /tmp/log"),
        ("python manage.py check 2 >/tmp/log", ["2"], "its redirection to /tmp/log"),
        ("python manage.py check a2>/tmp/log", ["a2"], "its redirection to /tmp/log"),
    ],
)
def test_without_shell_a_line_becomes_the_call_and_says_what_it_omits(
    settings: Settings, command: str, args: list[str], omitted: str
) -> None:
    settings.DCRON_COMMANDS = {"check": ["--tag"]}
    assert only(f"0 0 * * * {command}").values["target"].startswith("shell:")
    entry = only(f"0 0 * * * {command}", without_shell=True)
    assert (entry.values["target"], entry.values["args"]) == ("command:check", args)
    (warning,) = entry.warnings
    assert warning.startswith(
        "the line becomes command:check of this project. The job omits: the shell"
    )
    assert omitted in warning
    assert bool(omitted) == (", " in warning)
    with_variable = only(f"DJANGO_SETTINGS_MODULE=a\n0 0 * * * {command}", without_shell=True)
    assert "its variable DJANGO_SETTINGS_MODULE" in with_variable.warnings[0]


@pytest.mark.parametrize(
    "command",
    [
        "python manage.py check $TAG",
        "python manage.py check `tag`",
        'python manage.py check "$(tag)"',
        "python manage.py check *.txt",
        "python manage.py check && reboot",
        "python manage.py check | mail -s x y",
        "python manage.py check > $(date).log",
        "python manage.py check; reboot",
        "python manage.py check%input",
        "A=$(reboot) python manage.py check",
        "flock -n /tmp/x -c 'python manage.py check'",
        "flock -s /tmp/x python manage.py check",
        "flock --unlock /tmp/x python manage.py check",
        "flock -n /tmp/x flock /tmp/y python manage.py check",
        "python manage.py check 3>/tmp/x",
        "other && python manage.py check",
    ],
)
def test_line_that_a_shell_must_run_stays_in_the_shell(settings: Settings, command: str) -> None:
    settings.DCRON_COMMANDS = ["check"]
    entry = only(f"0 0 * * * {command}", without_shell=True)
    assert entry.values["target"] == "shell:check"


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ("-n", "skip"),
        ("--nonblock", "skip"),
        ("-xn", "skip"),
        ("-w 10", "skip"),
        ("--timeout=10", "skip"),
        ("--no-fork", "queue_all"),
        ("", "queue_all"),
    ],
)
def test_lock_of_a_line_becomes_the_overlap_policy(
    settings: Settings, options: str, policy: str
) -> None:
    settings.DCRON_COMMANDS = ["check"]
    command = f"/usr/bin/flock {options} /run/lock/check.lock python manage.py check"
    entry = only(f"0 0 * * * {command}", without_shell=True)
    assert entry.values["overlap_policy"] == policy


def test_without_shell_needs_a_crontab(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    file.write_text("[]")
    for source in (str(file), "django-crontab"):
        refused = call("import", source, "--without-shell")
        assert refused.code == 2
        assert "--without-shell can only be used with a crontab" in refused.err


def test_names_of_one_command_differ_by_its_arguments(settings: Settings) -> None:
    lines = "\n".join(
        f"0 {hour} * * * python manage.py check {arguments}"
        for hour, arguments in enumerate(
            (
                "",
                "--tag=models",
                "--tag models --deploy",
                "app",
                "--api-key=abc",
                "--pwd=abc",
                "https://me:abc@shop.example",
                "x" * 50,
            )
        )
    )
    entries = with_distinct_names(read(lines).entries)
    names = [entry.name for entry in entries]
    assert names[1:4] == ["check-tag-models", "check-tag-models-deploy", "check-app"]
    assert len(set(names)) == 8
    assert "abc" not in "".join(names)


@pytest.mark.parametrize(
    "lines",
    [
        ["python manage.py imp feed", "python manage.py imp other", "/srv/imp-feed.sh"],
        ["python manage.py imp a_b", "python manage.py imp A_B"],
        ["cd /a && python manage.py imp feed", "cd /b && python manage.py imp feed"],
    ],
)
def test_each_command_has_its_own_name(lines: list[str]) -> None:
    text = "\n".join(f"@daily {line}" for line in lines)
    contents = read(text)
    assert len(contents.shell) == len(lines)
    names = [entry.name.casefold() for entry in with_distinct_names(contents.entries)]
    assert len({*names}) == len(lines)
    assert names == [name.casefold() for name in contents.shell]


def test_note_names_options_of_the_printed_settings_that_may_be_secret() -> None:
    lines = (
        "5 * * * * curl -H x --api-key=abc https://example.com/monkey",
        "6 * * * * backup --to ftp://ann:pw@example.com/keys --token abc",
    )
    (note,) = [each for each in read("\n".join(lines)).notes if "secret" in each]
    assert f"values of --api-key={MASK}, --token {MASK}, ftp://ann:{MASK}@example.com/keys." in note
    harmless = "5 * * * * monkey --bypass-cache /srv/keys https://example.com:8000/token"
    assert not [each for each in read(harmless).notes if "secret" in each]


def test_note_names_variables_of_the_printed_settings_that_may_be_secret() -> None:
    text = "API_KEY=abc\nLANG=C\n0 0 * * * /srv/x.sh\n"
    (note,) = [each for each in read(text).notes if "secret" in each]
    assert "value of API_KEY" in note
    assert "os.environ['API_KEY']" in note


def test_later_import_uses_the_zone_of_the_last_one(tmp_path: Path, settings: Settings) -> None:
    """The zone is an option, so a later import may be without it."""
    settings.DCRON_COMMANDS = ["check"]
    file = tmp_path / "crontab"
    file.write_text("0 3 * * * python manage.py check\n")
    assert "in the time zone UTC. To use" in call("import", str(file)).out
    given = call("import", str(file), "--timezone", "Asia/Tokyo", "--apply").out
    assert "in the time zone Asia/Tokyo.\n" in given
    again = call("import", str(file)).out
    assert "1 same" in again
    assert "in the time zone Asia/Tokyo, as in the last import. To use another one" in again
    moved = call("import", str(file), "--timezone", "UTC").out
    assert "timezone: Asia/Tokyo -> UTC" in moved


def test_default_time_zone_is_named_only_if_a_line_needs_it() -> None:
    def is_named(text: str) -> bool:
        return any("Times without CRON_TZ" in note for note in read(text).notes)

    assert is_named("0 0 * * * x\n")
    assert not is_named("CRON_TZ=UTC\n0 0 * * * x\n")
    assert is_named("0 0 * * * y\nCRON_TZ=UTC\n0 0 * * * x\n")


def test_no_setting_is_suggested_for_a_refused_line() -> None:
    contents = read("0 0 99 * * python manage.py check\n@daily python manage.py clearsessions\n")
    assert contents.commands == {"clearsessions": []}


def test_management_command_in_dcron_shell_stays_there(settings: Settings) -> None:
    settings.DCRON_COMMANDS = ["check"]
    line = "0 0 * * * python manage.py check"
    settings.DCRON_SHELL = {"check": ["/bin/sh", "-c", "python manage.py check"]}
    assert only(line).values["target"] == "shell:check"
    (note,) = [note for note in read(line).notes if "DCRON_COMMANDS" in note]
    assert "remove 'check' from DCRON_SHELL" in note
    settings.DCRON_COMMANDS = []
    assert not any("DCRON_COMMANDS" in note for note in read(line).notes)
    settings.DCRON_COMMANDS = ["check"]
    settings.DCRON_SHELL = {}
    assert not read(line).shell
    assert not any("DCRON_COMMANDS" in note for note in read(line).notes)


def test_import_that_starts_jobs_of_a_crontab_says_that_cron_runs_them(
    tmp_path: Path, settings: Settings
) -> None:
    settings.DCRON_COMMANDS = ["check", "migrate"]
    file = tmp_path / "crontab"
    file.write_text("30 3 * * * python manage.py check\n")

    def warns(*options: str) -> bool:
        return "cron runs it, too" in call("import", str(file), *options).out

    assert warns()
    assert "To compare first" in call("import", str(file)).out
    assert not warns("--apply", "--shadow")
    assert Job.objects.get().target == "shadow:command:check"
    assert warns("--apply")
    assert Job.objects.get().target == "command:check"
    assert not warns("--apply"), "the job already runs"
    file.write_text(file.read_text() + "30 4 * * * python manage.py migrate\n")
    assert warns()
    assert "To compare first" not in call("import", str(file)).out


def test_import_without_disabled_enables_the_jobs_of_a_disabled_import(
    tmp_path: Path, settings: Settings
) -> None:
    settings.DCRON_COMMANDS = ["check"]
    file = tmp_path / "crontab"
    file.write_text("30 3 * * * python manage.py check\n")
    assert call("import", str(file), "--apply", "--disabled").code == 0
    assert call("import", str(file), "--apply", "--disabled", "--json").json["counts"]["same"] == 1
    assert not Job.objects.get().enabled
    assert call("import", str(file), "--apply", "--json").json["counts"]["change"] == 1
    assert Job.objects.get().enabled
    control.pause(Job.objects.get(), "incident 42")
    assert call("import", str(file), "--apply", "--json").json["counts"]["same"] == 1
    assert not Job.objects.get().enabled, "the pause of a person stays"
    assert call("import", str(file), "--apply", "--overwrite", "enabled").code == 0
    assert Job.objects.get().enabled


def test_repeated_line_becomes_two_jobs() -> None:
    plans = compare_entries(read("0 1 * * * a\n0 1 * * * a\n").entries)
    assert len({plan.name for plan in plans}) == 2


def test_crontab_file_is_imported(tmp_path: Path, settings: Settings) -> None:
    file = tmp_path / "crontab"
    file.write_text("30 3 * * * close-day\n@hourly sync\n")
    shown = call("import", str(file))
    assert shown.code == 1
    assert "refused close-day (line 1) target: Unknown target 'shell:close-day'" in shown.out
    start = shown.out.index("DCRON_SHELL = {")
    code = shown.out[start : shown.out.index("\n}", start) + 2]
    scope: dict[str, Any] = {}
    exec(code, scope)  # noqa: S102 (as if pasted into the settings)
    settings.DCRON_SHELL = scope["DCRON_SHELL"]
    assert call("import", str(file), "--apply").code == 0
    assert set(Job.objects.values_list("name", "schedule", "target")) == {
        ("close-day", "30 3 * * *", "shell:close-day"),
        ("sync", "@hourly", "shell:sync"),
    }
    again = call("import", str(file))
    assert again.code == 0
    assert "2 same." in again.out
    assert "DCRON_SHELL = {" not in again.out, "nothing is missing in the settings"


def test_line_is_refused_if_its_shell_name_has_another_command(settings: Settings) -> None:
    settings.DCRON_SHELL = {"x": ["rm", "-rf"]}
    assert "DCRON_SHELL" in only("0 0 * * * x").refused


def test_unreadable_file_or_unknown_time_zone_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path / "nothing"), "crontab", "Crontab"):
        missing = call("import", path)
        assert missing.code == 2
        assert "can't be read" in missing.err
        assert "Did you mean" not in missing.err
    zone = call("import", "-", "--timezone", "Europe/Berlim")
    assert zone.code == 2
    assert "'Europe/Berlin'" in zone.err
