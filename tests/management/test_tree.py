"""Test the command tree: its subcommands, their help and their exit codes."""

import os
import re
import shlex
import subprocess
import sys
from argparse import Action
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser, SystemCheckError
from django.db import OperationalError
from pytest_django import Settings

from django_dcron.management.commands import dcron
from django_dcron.management.commands.dcron import (
    GROUPS,
    SUBCOMMANDS,
    load_subcommand,
)
from django_dcron.management.dcron import exits
from django_dcron.management.dcron import list as list_module
from tests.management.calling import call
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.django_db


def process(*arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run ``dcron`` as from a shell, without a database."""
    return subprocess.run(
        [sys.executable, "-m", "django", "dcron", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=os.environ | env,
        check=False,
    )


def help_of(*arguments: str) -> str:
    parser = dcron.Command().create_parser("manage.py", "dcron")
    out = StringIO()
    (parser if not arguments else _subparser(parser, arguments[0])).print_help(out)
    return out.getvalue()


def _subparser(parser: Any, name: str) -> Any:
    return next(action.choices[name] for action in parser._actions if action.dest == "subcommand")


def test_command_without_arguments_lists_subcommands_in_groups() -> None:
    code, out, _err = call()
    assert code == 0
    assert re.findall(r"^(\w+):$", out, re.MULTILINE) == list(GROUPS)
    assert re.findall(r"^  (\w+) +\S", out, re.MULTILINE) == list(SUBCOMMANDS)
    assert dcron.EXIT_CODES in out


def test_top_level_help_lists_subcommands() -> None:
    assert dcron.grouped_subcommands() in help_of()


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help_of_subcommand_contains_examples(name: str) -> None:
    module, text = load_subcommand(name), help_of(name)
    examples = module.EXAMPLES.strip().splitlines()
    assert examples
    for example in examples:
        assert example.split()[0] == name
        assert f"  manage.py dcron {example}\n" in text
    assert module.HELP.split(".")[0].split()[0] in text
    assert "--no-color" in text


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_examples_are_valid(name: str) -> None:
    """The options in the examples exist. The jobs and files needn't."""
    for example in load_subcommand(name).EXAMPLES.strip().splitlines():
        parser = dcron.Command().create_parser("manage.py", "dcron")
        line = example.split("  #")[0].split(" | ")[0].split(" > ")[0]
        assert parser.parse_args(shlex.split(line)).subcommand == name


def test_common_options_work_before_or_after_subcommand() -> None:
    parser = dcron.Command().create_parser("manage.py", "dcron")
    before, after = (
        parser.parse_args(["--no-color", "nodes"]),
        parser.parse_args(["nodes", "--no-color"]),
    )
    assert before.no_color
    assert after.no_color
    assert not parser.parse_args(["nodes"]).no_color
    assert parser.parse_args(["-v", "2", "nodes"]).verbosity == 2


def test_call_command_accepts_options_by_name() -> None:
    out = StringIO()
    call_command("dcron", "list", json=True, stdout=out)
    assert '"jobs": []' in out.getvalue()
    with pytest.raises(TypeError, match="nonsense"):
        call_command("dcron", "list", nonsense=True)


def _positionals(name: str) -> list[Action]:
    parser = CommandParser(add_help=False)
    load_subcommand(name).add_arguments(parser)
    return [action for action in parser._actions if not action.option_strings]


WITH_OPTIONAL_LIST = [
    name for name in dcron.SUBCOMMANDS if any(action.nargs == "*" for action in _positionals(name))
]


@pytest.mark.parametrize("name", WITH_OPTIONAL_LIST)
def test_call_command_accepts_optional_list_as_one_text_or_a_list(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (several,) = (action for action in _positionals(name) if action.nargs == "*")
    others = ["a" for action in _positionals(name) if action.nargs is None]
    seen: list[Any] = []
    monkeypatch.setattr(
        load_subcommand(name), "run", lambda command, options: seen.append(options[several.dest])
    )
    call_command("dcron", name, *others)
    for given in ("report", ["report"]):
        call_command("dcron", name, *others, **{several.dest: given})
    assert seen == [[], ["report"], ["report"]]


def test_call_command_accepts_option_that_is_an_argument_of_another_subcommand() -> None:
    with pytest.raises(CommandError, match="No jobs match"):
        call_command("dcron", "rerun", source="crontab", state=["failed"], since="1h")
    with pytest.raises(CommandError, match="required: JOB"):
        call_command("dcron", "show", job="nobody")


def test_health_imports_no_other_subcommand() -> None:
    code = (
        "import sys\n"
        "from django.core.management import execute_from_command_line as execute\n"
        "try:\n    execute(['manage.py', 'dcron', 'health', '--file', '/nowhere/none'])\n"
        "except SystemExit as ended:\n    print(ended.code, *sorted(sys.modules))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=os.environ,
        check=False,
    )
    exit_code, *modules = result.stdout.split()
    subcommands = {
        name.rpartition(".")[2]
        for name in modules
        if name.startswith("django_dcron.management.dcron.")
    }
    assert (exit_code, subcommands) == ("1", {"health", "exits"})
    assert "rich" not in modules
    assert "none doesn't exist: no node is running" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["lst"], ["list", "--nonsense"], ["next"], ["next", "@daily", "-n", "0"]]
)
def test_invalid_arguments_exit_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        dcron.Command().run_from_argv(["manage.py", "dcron", *arguments])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, "error: " in err) == ("", True)


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["lsit"], "list"),
        (["--skip-chekcs", "list"], "--skip-checks"),
        (["list", "--namspace", "shop"], "--namespace"),
        (["history", "shop/stock", "--satte=failed"], "--state"),
        (["history", "shop/stock", "--state", "fialed"], "failed"),
        (["handover", "redbat"], "redbeat"),
    ],
)
def test_misspelled_choice_or_option_suggests_similar_one(
    arguments: list[str], suggested: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        dcron.Command().run_from_argv(["manage.py", "dcron", *arguments])
    assert ended.value.code == 2
    assert f"Did you mean {suggested!r}?" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["crontab.txt", "crontab", "Crontab", "/srv/django-cron"])
def test_handover_from_a_file_names_the_schedulers_and_the_way_for_files(
    capsys: pytest.CaptureFixture[str], file: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        dcron.Command().run_from_argv(["manage.py", "dcron", "handover", file])
    assert ended.value.code == 2
    error = " ".join(capsys.readouterr().err.split())
    assert repr(file) in error
    assert "'django-crontab'" not in error
    assert "redbeat" in error
    assert "migrate-sources.md#a-crontab" in error


@pytest.mark.parametrize("arguments", [["xyz"], ["list", "--zzz"], ["list", "extra"]])
def test_dissimilar_names_are_not_suggested(arguments: list[str]) -> None:
    code, _out, error = call(*arguments)
    assert code == 2
    assert arguments[-1] in error
    assert "Did you mean" not in error


def test_missing_tables_exit_with_2(tmp_path: Any) -> None:
    """Every subcommand prints an error instead of a traceback."""
    settings = tmp_path / "settings_of_nowhere.py"
    settings.write_text(
        "from tests.settings import *\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', "
        f"'NAME': {str(tmp_path / 'empty')!r}}}}}\n"
    )
    result = process(
        "list",
        "--skip-checks",
        PYTHONPATH=f"{tmp_path}:.",
        DJANGO_SETTINGS_MODULE="settings_of_nowhere",
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert "no such table: django_dcron_job" in result.stderr
    assert "Traceback" not in result.stderr


def test_database_error_or_invalid_setting_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    def raise_database_error(*args: object) -> None:
        raise OperationalError("server closed the connection\n\tunexpectedly")

    monkeypatch.setattr(list_module, "jobs_matching", raise_database_error)
    code, out, err = call("list")
    assert (code, out) == (2, "")
    assert "server closed the connection unexpectedly" in err
    assert "\n" not in err
    settings.DCRON_LOCK = "no.such.Lock"
    code, _out, err = call("doctor")
    assert code == 2
    assert "no.such.Lock" in err


def test_failed_system_check_exits_with_2(settings: Settings) -> None:
    settings.DCRON_TICK = "often"
    with pytest.raises(SystemCheckError, match="DCRON_TICK") as refused:
        call_command("dcron", "list", skip_checks=False)
    assert refused.value.returncode == 2


def test_closed_pipe_exits_with_141_without_traceback() -> None:
    shell = f"{sys.executable} -m django dcron | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (result.stdout, result.stderr) == ("141\n", "")


@pytest.mark.parametrize(
    ("arguments", "closed", "code"), [("", 1, 0), ("start --log-file x", 2, 2)]
)
def test_closed_standard_stream_is_ignored(arguments: str, closed: int, code: int) -> None:
    command = f"{shlex.quote(sys.executable)} -m django dcron {arguments} {closed}>&-"
    shown = subprocess.run(  # noqa: S602
        command,
        shell=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (shown.returncode, shown.stdout, shown.stderr) == (code, "", "")


def test_argument_that_is_not_utf_8_is_refused() -> None:
    """The shell passes such bytes as surrogates."""
    for arguments in (("show", "\udcff"), ("list", "--namespace", "\udcff"), ("prune", "\udcff")):
        code, out, error = call(*arguments)
        assert (code, out, error) == (2, "", "'\\udcff' isn't valid UTF-8.")


@pytest.mark.parametrize("refusal", [exits.negative_result, exits.usage_error])
def test_errors_escape_control_characters(refusal: Any) -> None:
    assert str(refusal("a\x1b[31mb\x9bc\nd\u202ee")) == "a\\x1b[31mb\\x9bc\nd\\u202ee"


def test_broken_pipe_of_other_connection_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise BrokenPipeError("the broker's")

    monkeypatch.setattr(list_module, "jobs_matching", broken)
    with pytest.raises(BrokenPipeError, match="the broker's"):
        call("list")


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(list_module, "jobs_matching", interrupted)
    with pytest.raises(SystemExit) as ended:
        call_command("dcron", "list")
    assert ended.value.code == 130


def test_output_is_english_in_any_language(settings: Settings) -> None:
    settings.LANGUAGE_CODE = "de"
    code, _out, err = call("next", "@at 2020-01-01T00:00")
    assert (code, err) == (1, "There are no further occurrences.")
    assert "! The schedule has no further occurrence." in _out


def test_command_error_carries_exit_code() -> None:
    with pytest.raises(CommandError) as refused:
        call_command("dcron", "show", "nobody")
    assert refused.value.returncode == 2
