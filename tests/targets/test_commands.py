"""Management commands as targets, run by Django's own command machinery."""

import sys
from types import ModuleType
from typing import Any

import pytest
from django.core.management import base, get_commands
from pytest_django import Settings

from django_dcron import targets
from django_dcron.exceptions import InvalidArguments, UnknownTarget
from django_dcron.targets import Invocation, Target, TargetKind
from tests.refusals import refusal


class Command(base.BaseCommand):
    help = "Count the stock.\n\nAt length."

    def add_arguments(self, parser: base.CommandParser) -> None:
        parser.add_argument("shelves", nargs="*", type=int)
        parser.add_argument("--unit", required=True)
        parser.add_argument("--exit", type=int, dest="code")

    def handle(self, *args: Any, **options: Any) -> str:
        if options["code"] is not None:
            sys.exit(options["code"])
        if options["unit"] == "mile":
            raise base.CommandError("miles are not counted")
        self.stderr.write("counting")
        return f"counted {options['shelves']} in {options['unit']}"


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    """The project has Django's commands and ``stock``. The settings also allow a missing one."""
    module = ModuleType("shop.management.commands.stock")
    module.Command = Command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(get_commands(), "stock", "shop")
    settings.DCRON_COMMANDS = {
        "stock": ["shelves", "--unit", "--exit"],
        "check": [],
        "vanished": [],
    }


@pytest.fixture
def stock() -> Target:
    return targets.get("command:stock")


def test_command_listed_in_settings_is_a_target(stock: Target) -> None:
    assert (stock.key, stock.kind, stock.route_name) == ("command:stock", TargetKind.COMMAND, None)
    assert stock.description == "Count the stock."
    assert [key for key in targets.available() if key.startswith("command:")] == [
        "command:check",
        "command:stock",
    ]


@pytest.mark.parametrize(
    ("key", "exists", "near"),
    [
        ("command:flush", True, ""),
        ("command:stok", False, "'command:stock'"),
        ("command:flsh", False, "DCRON_COMMANDS: 'flush'"),
        ("command:nothing_like_it", False, ""),
        ("command:vanished", False, ""),
    ],
)
def test_unlisted_or_missing_command_is_refused(key: str, exists: bool, near: str) -> None:
    with pytest.raises(UnknownTarget) as caught:
        targets.get(key)
    params = caught.value.params
    assert params["target"] == repr(key)
    assert all(text in str(caught.value) for text in (repr(key), near))
    assert ("Add it there" in str(caught.value)) is exists
    assert ("no management command has this name" in str(caught.value)) is not exists


def test_command_output_and_errors_go_to_stdout(
    stock: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    returned = stock.call(Invocation([1, "2"], {"unit": "kg"}))

    assert returned == "counted [1, 2] in kg"
    assert capsys.readouterr() == ("counting\ncounted [1, 2] in kg\n", "")


def test_command_error_is_raised(stock: Target) -> None:
    with pytest.raises(base.CommandError, match="miles are not counted"):
        stock.call(Invocation(kwargs={"unit": "mile"}))


def test_sys_exit_with_nonzero_code_raises_command_error(stock: Target) -> None:
    with pytest.raises(base.CommandError, match=r"stock .*3"):
        stock.call(Invocation(kwargs={"unit": "kg", "code": 3}))
    assert stock.call(Invocation(kwargs={"unit": "kg", "code": 0})) is None


@pytest.mark.parametrize(
    ("args", "kwargs", "message", "field"),
    [
        (["one"], {"unit": "kg"}, "argument shelves: invalid int value: 'one'", "args"),
        ([], {}, "the following arguments are required: --unit", "args"),
        ([], {"shelves": [1], "unit": "kg"}, ".", "kwargs"),
        ([], {"shelves": 1, "unit": "kg"}, ".", "kwargs"),
        ([], {"unit": "kg", "colour": "red"}, "Unknown option.* colour", "kwargs"),
        ([], {"unit": "kg", "stdout": "x"}, "'stdout'", "kwargs"),
        ([["1"]], {"unit": "kg"}, r"\['1'\]", "args"),
        (["--help"], {"unit": "kg"}, "--help", "args"),
    ],
)
def test_arguments_are_checked_by_the_command_parser(
    stock: Target, args: list[Any], kwargs: dict[str, Any], message: str, field: str
) -> None:
    with pytest.raises(InvalidArguments, match=message) as caught:
        stock.check_arguments(args, kwargs)
    assert caught.value.field == field


def test_checking_arguments_does_not_run_the_command(
    stock: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    stock.check_arguments([1, 2], {"unit": "kg"})
    stock.check_arguments([1, "--unit=kg"], {})
    assert capsys.readouterr() == ("", "")


def test_already_loaded_command_instance_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(get_commands(), "stock", Command())
    target = targets.get("command:stock")

    assert target.description == "Count the stock."
    target.check_arguments([], {"unit": "kg"})
    assert target.call(Invocation(kwargs={"unit": "kg"})) == "counted [] in kg"


# --- Allowed arguments --------------------------------------------------------------------------


class Tree(base.BaseCommand):
    """A command with subcommands and unusual options.

    One option is required, one writes a file, and one is missing from the parser.
    """

    stealth_options = ("stream",)

    def add_arguments(self, parser: base.CommandParser) -> None:
        parser.add_argument("--into", required=True, nargs="+")
        parser.add_argument("--output", "-o", dest="path")
        parser.add_argument("--quiet", action="store_const", const="/dev/null", dest="path")
        below = parser.add_subparsers(dest="subcommand")
        prune = below.add_parser("prune", aliases=["trim"])
        prune.add_argument("rows", nargs="*")
        prune.add_argument("--log")
        below.add_parser("drop")

    def handle(self, *args: Any, **options: Any) -> str:
        return f"{options['into']} {options['path']} {options.get('rows')}"


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Target:
    monkeypatch.setitem(get_commands(), "tree", Tree())
    settings.DCRON_COMMANDS = {"tree": ["--into", "--quiet", "prune", "rows"]}
    return targets.get("command:tree")


REFUSED = [
    (["--into", "a", "--output", "/x"], {}, "--output", "args"),
    (["--into", "a", "--output=/x"], {}, "--output", "args"),
    (["--into", "a", "--out", "/x"], {}, "--output", "args"),
    (["--into", "a", "-o/x"], {}, "--output", "args"),
    (["--into", "a"], {"path": "/x"}, "--output", "kwargs"),
    (["--into", "a"], {"output": "/x"}, "--output", "kwargs"),
    ([], {"into": ["a", "--output", "/x"]}, "--output", "args"),
    (["--into", "a"], {"stream": "/x"}, "stream", "kwargs"),
    (["--into", "a", "--quiet", "drop"], {}, "drop", "args"),
    (["drop", "--into", "a"], {}, "drop", "args"),
    (["--into", "a", "--quiet", "trim"], {}, "trim", "args"),
    (["--into", "a", "--quiet", "prune", "1", "--log", "/x"], {}, "--log", "args"),
    (["--into", "a", "--quiet", "prune", "1"], {"log": "/x"}, "--log", "kwargs"),
]


@pytest.mark.parametrize(("args", "kwargs", "argument", "field"), REFUSED)
def test_arguments_not_listed_in_settings_are_refused(
    tree: Target, args: list[Any], kwargs: dict[str, Any], argument: str, field: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        tree.check_arguments(args, kwargs)
    assert (caught.value.field, caught.value.text.values["argument"]) == (field, argument)
    assert caught.value.text.values["allowed"] == "--into, --quiet, prune, rows"

    with pytest.raises(InvalidArguments):  # stored before the settings were narrowed
        tree.call(Invocation(args, kwargs))


def test_arguments_listed_in_settings_are_accepted(tree: Target) -> None:
    args = ["--quiet", "--into", "a", "b", "--verbosity", "2", "prune", "1"]
    tree.check_arguments(args, {})
    assert tree.call(Invocation(args)) == "['a', 'b'] /dev/null ['1']"
    tree.check_arguments([], {"into": ["a"], "verbosity": 0, "no_color": True})


def test_list_of_command_names_allows_no_arguments(settings: Settings) -> None:
    settings.DCRON_COMMANDS = ["dumpdata", "check"]
    target = targets.get("command:dumpdata")

    target.check_arguments([], {})
    target.check_arguments(["-v", "2"], {})
    for args, kwargs, argument in [
        (["app"], {}, "args"),
        (["--output", "/x"], {}, "--output"),
        ([], {"output": "/x"}, "--output"),
    ]:
        field, entry = "kwargs" if kwargs else "args", f'"dumpdata": ["{argument}"]'
        with refusal(InvalidArguments, "not_allowed", field=field, entry=entry):
            target.check_arguments(args, kwargs)


def test_all_arguments_are_accepted_with_the_all_marker(settings: Settings) -> None:
    settings.DCRON_COMMANDS = {"dumpdata": "__all__"}
    targets.get("command:dumpdata").check_arguments(["app", "--output", "/x"], {"indent": 2})


def test_required_positional_given_by_name_is_a_kwargs_error(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.DCRON_COMMANDS = {"sqlmigrate": ["app_label", "migration_name"]}
    with refusal(InvalidArguments, "positional", field="kwargs", name="'app_label'"):
        targets.get("command:sqlmigrate").check_arguments(
            [], {"app_label": "x", "migration_name": "y"}
        )
