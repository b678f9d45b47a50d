"""``manage.py dcron SUBCOMMAND``.

Each subcommand is a module of ``django_dcron.management.dcron``, imported only when it is used.
"""

from __future__ import annotations

import os
import select
import sys
from argparse import (
    SUPPRESS,
    Action,
    ArgumentError,
    RawDescriptionHelpFormatter,
    _AppendAction,
)
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from io import StringIO, TextIOWrapper
from keyword import iskeyword
from textwrap import fill
from typing import Any, NoReturn, Protocol, cast

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
    OutputWrapper,
    SystemCheckError,
)
from django.db import DatabaseError, InterfaceError
from django.utils.translation import override

from django_dcron.db.error_remedies import with_remedy
from django_dcron.management.dcron.exits import HOW_TO_CREATE_A_JOB, USAGE_ERROR, usage_error

GROUPS = {
    "Inspect": {
        "list": "list jobs with their next run, last run and state",
        "show": "show a job: definition, state and next occurrences",
        "next": "show the next occurrences of a job or a schedule",
        "history": "show the runs of a job, or one run with its log",
        "audit": "show who changed, paused, ran or cancelled what",
        "why": "explain why a job ran or didn't run at a given time",
        "simulate": "simulate a period: load, busiest minutes, clashes",
        "nodes": "list the nodes",
        "freezes": "list the freezes of scheduling",
        "limits": "list the shared limits with their running and waiting runs",
        "doctor": "find problems with jobs, runs and nodes",
    },
    "Control": {
        "run": "run a job now and wait for it",
        "set": "change fields of jobs",
        "revert": "undo an edit of a job",
        "pause": "pause jobs, optionally until a time",
        "resume": "resume paused jobs",
        "freeze": "freeze scheduling, of all jobs or of a namespace",
        "unfreeze": "end a freeze",
        "delete": "delete jobs, and keep or erase their history",
        "cancel": "cancel runs",
        "rerun": "run finished runs again",
        "backfill": "create runs for past occurrences",
        "export": "export jobs as JSON or YAML",
        "import": "import jobs from another scheduler, a crontab or an export",
        "handover": "take over from another scheduler, or hand back",
        "sync": "write jobs declared in code to the database",
        "calendar": "write a calendar from an iCalendar file",
        "limit": "create, change or delete a shared limit",
    },
    "Operate": {
        "prune": "delete expired runs",
        "start": "start a node in the foreground or background",
        "stop": "drain and stop a node",
        "restart": "restart a node with the same options",
        "state": "show whether a node is running",
        "health": "check a node's health file, for probes",
        "alert": "send a test message to an alert channel",
    },
}
"""The subcommands with their summaries.

A new subcommand needs a line here and a module of the same name.
"""

SUBCOMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
MEANT_TO_CREATE = {"add", "create", "new"}
"""Names that aren't subcommands, and that users try who want to create a job."""
UNCHECKED = {"health", "start", "stop", "restart", "state"}
"""Subcommands without system checks.

They run often, don't depend on the project, or leave the checks to ``runcron``.
"""

EXIT_CODES = (
    "Exit codes: 0 success; 1 failure or a negative answer; 2 invalid input, invalid settings or a "
    "database error."
)
MORE = f"Run manage.py dcron SUBCOMMAND --help for details. {EXIT_CODES}"
WIDTH = 90
BROKEN_PIPE, INTERRUPTED = 141, 130
"""The exit codes that a shell reports for a process ended by SIGPIPE or SIGINT."""


class Subcommand(Protocol):
    HELP: str
    EXAMPLES: str

    def add_arguments(self, parser: CommandParser) -> None: ...
    def run(self, command: BaseCommand, options: dict[str, Any]) -> None: ...


def load_subcommand(name: str) -> Subcommand:
    module = f"{name}_" if iskeyword(name) else name
    return cast("Subcommand", import_module(f"django_dcron.management.dcron.{module}"))


class HelpFormatter(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Use Django's order of options, and leave texts unwrapped."""


class SuggestingParser(CommandParser):
    """A parser that suggests the choice or option that a misspelled one probably means.

    Abbreviated options are refused, because a new option could change what they mean.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def _check_value(self, action: Action, value: Any) -> None:
        choices = action.choices
        if choices is not None and value not in choices:
            names = [str(choice) for choice in choices]
            hint = _did_you_mean(str(value), names)
            if action.dest == "subcommand" and value in MEANT_TO_CREATE:
                hint = f" {HOW_TO_CREATE_A_JOB}"
            raise ArgumentError(
                action, f"invalid choice: {value!r}.{hint} Choose from {', '.join(names)}."
            )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = super().parse_known_args(args, namespace)
        unknown = self._without_further_values(known, unknown)
        if unknown:
            option, options = unknown[0].partition("=")[0], list(self._option_string_actions)
            near = _did_you_mean(option, options) if option.startswith("-") else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}.{near}")
        return known, unknown

    def _without_further_values(self, known: Any, unknown: list[str]) -> list[str]:
        """Move values after an option to the list of names, which ``argparse`` ends there."""
        lists = [each.dest for each in self._get_positional_actions() if each.nargs == "*"]
        if not lists or any(each.startswith("-") for each in unknown):
            return unknown
        setattr(known, lists[-1], [*(getattr(known, lists[-1]) or ()), *unknown])
        return []

    def error(self, message: str) -> NoReturn:
        if self.called_from_command_line:
            super().error(message)
        raise usage_error(f"Error: {message}")


class SubcommandParser(SuggestingParser):
    """A parser that loads its options only when used.

    ``dcron health`` therefore imports no other subcommand.
    """

    def __init__(self, *, subcommand: str, **options: Any) -> None:
        super().__init__(**options)
        self._subcommand = subcommand
        self._loaded = False
        self._required: list[Action] = []

    def load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        module = load_subcommand(self._subcommand)
        self.description = fill(module.HELP, WIDTH)
        examples = "\n".join(
            f"  manage.py dcron {line}" for line in module.EXAMPLES.strip().splitlines()
        )
        self.epilog = f"Examples:\n{examples}"
        module.add_arguments(self)
        _add_options_of_django(self)
        if not self.called_from_command_line:
            # ``call_command`` fails for an option with the name of a required positional argument,
            # even one of another subcommand.
            self._required = [each for each in self._get_positional_actions() if each.required]
            for action in self._required:
                action.required = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.load()
        for action in self._required:
            action.required = True
        return super().parse_known_args(args, namespace)


class Command(BaseCommand):
    help = "Inspect and control jobs, runs and nodes of django-dcron."

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        parser = super().create_parser(
            prog_name, subcommand, formatter_class=HelpFormatter, **options
        )
        parser.__class__ = SuggestingParser  # Django doesn't let a command choose the class.
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        parser.description = f"{self.help}\n\n{grouped_subcommands()}"
        parser.usage = "%(prog)s SUBCOMMAND [options]"
        parser.epilog = MORE
        subparsers = parser.add_subparsers(
            dest="subcommand", metavar="SUBCOMMAND", help=SUPPRESS, parser_class=SubcommandParser
        )
        for name in SUBCOMMANDS:
            added = subparsers.add_parser(
                name, subcommand=name, formatter_class=HelpFormatter, prog=f"{parser.prog} {name}"
            )
            # ``call_command`` needs all options in advance.
            if not parser.called_from_command_line:
                added.load()

    def run_from_argv(self, argv: list[str]) -> None:
        # The caller may have closed the standard streams. A background process needs them.
        if sys.stdin is None:
            sys.stdin = open(os.devnull)  # noqa: SIM115 (until the process ends)
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None:
                stream = open(os.devnull, "w")  # noqa: SIM115
                setattr(sys, name, stream)
                setattr(self, name, OutputWrapper(stream))
            # A name that the terminal can't encode must not end the command.
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        super().run_from_argv(argv)

    def check(self, *args: Any, **options: Any) -> None:
        """Report errors only. ``check``, ``runserver`` and ``runcron`` also report warnings."""
        # Imported late, because ``dcron health`` runs often and has no checks.
        from django_dcron.db.routing import alias_for
        from django_dcron.db.support import time_zone_problem
        from django_dcron.models import Job

        if problem := time_zone_problem(alias_for(Job)):  # elsewhere, this is a warning
            raise usage_error(f"{problem.setting} (E002). {problem.remedy}")
        stderr, self.stderr = self.stderr, OutputWrapper(StringIO())
        try:
            super().check(*args, **options)
        finally:
            self.stderr = stderr

    def execute(self, *args: Any, **options: Any) -> Any:
        if options["subcommand"] in UNCHECKED or options["subcommand"] is None:
            options |= {
                "skip_checks": True,
                "skip_checks_of_node": options.get("skip_checks", False),
            }
        try:
            with _short_import_errors(options):
                return super().execute(*args, **options)
        except SystemCheckError as error:
            error.returncode = USAGE_ERROR
            raise

    def handle(self, *args: Any, subcommand: str | None, **options: Any) -> None:
        try:
            with override(None):  # English, whatever the project's LANGUAGE_CODE
                if subcommand is None:
                    self.stdout.write(f"{self.help}\n\n{grouped_subcommands()}\n\n{MORE}")
                else:
                    if not getattr(self, "_called_from_command_line", False):
                        options |= _as_lists(subcommand, options)
                    with _limited_reads(subcommand), _acting_on_command_line(subcommand):
                        load_subcommand(subcommand).run(self, options)
            self.stdout.flush()
        except (DatabaseError, InterfaceError) as error:
            raise usage_error(f"Database error: {with_remedy(error)}") from error
        except UnicodeEncodeError as error:
            raise usage_error(f"{error.object!r:.200} isn't valid UTF-8.") from error
        except ImproperlyConfigured as error:
            raise usage_error(f"Invalid settings: {error}") from error
        except CommandError:
            self.stdout.flush()  # before the error's line, which goes to stderr
            raise
        except BrokenPipeError:
            if not _is_output_closed():  # another pipe, such as a connection, broke
                raise
            # Prevent the interpreter from writing to the pipe again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(BROKEN_PIPE)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


def _as_lists(subcommand: str, options: dict[str, Any]) -> dict[str, list[str]]:
    """Return the options with several values for which ``call_command`` got one text, as lists."""
    parser = CommandParser(add_help=False)
    load_subcommand(subcommand).add_arguments(parser)
    several = (
        each.dest
        for each in parser._actions
        if each.nargs in ("*", "+") or isinstance(each, _AppendAction)
    )
    return {name: [options[name]] for name in several if isinstance(options[name], str)}


def _limited_reads(subcommand: str) -> AbstractContextManager[None]:
    """Don't let a subcommand that only reads wait silently for a locked table."""
    if subcommand not in GROUPS["Inspect"]:
        return nullcontext()
    from django_dcron.db.routing import alias_for
    from django_dcron.db.session_limits import limited_reads
    from django_dcron.models import Run

    return limited_reads(alias_for(Run))


def _acting_on_command_line(subcommand: str) -> AbstractContextManager[None]:
    if subcommand in UNCHECKED:  # these subcommands change no jobs or runs
        return nullcontext()
    from django_dcron.management.dcron.command_line_user import acting_on_command_line

    return acting_on_command_line()


def _short_import_errors(options: dict[str, Any]) -> AbstractContextManager[None]:
    if options["subcommand"] in UNCHECKED or options.get("traceback"):
        return nullcontext()  # the log of a node has the traceback
    from django_dcron.management.dcron.import_errors import short_import_errors

    return short_import_errors()


def _did_you_mean(name: str, known: list[str]) -> str:
    # Imported late, because ``dcron health`` runs often.
    from django_dcron.utils.suggestions import did_you_mean

    return did_you_mean(name, known)


def _is_output_closed() -> bool:
    """Return whether the reader of standard output has closed it."""
    stdout = select.poll()
    stdout.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _fd, event in stdout.poll(0))


def grouped_subcommands() -> str:
    """Return the subcommands in groups."""
    width = max(map(len, SUBCOMMANDS))
    blocks = []
    for group, members in GROUPS.items():
        lines = (f"  {name:{width}}  {summary}" for name, summary in members.items())
        blocks.append("\n".join([f"{group}:", *lines]))
    return "\n\n".join(blocks)


def _add_options_of_django(parser: CommandParser) -> None:
    """Add the options of all management commands.

    They are accepted before and after the subcommand. An option that isn't given after the
    subcommand keeps its value from before it.
    """
    flags = {
        "--no-color": "disable colors",
        "--force-color": "force colors and tables without a terminal",
        "--skip-checks": "skip system checks",
        "--traceback": "show tracebacks of errors",
    }
    group = parser.add_argument_group("options of every command")
    for flag, text in flags.items():
        group.add_argument(flag, action="store_true", default=SUPPRESS, help=text)
    group.add_argument(
        "-v", "--verbosity", type=int, choices=[0, 1, 2, 3], default=SUPPRESS, help="0 to 3 (1)"
    )
    group.add_argument("--settings", default=SUPPRESS, help="the settings module to use")
    group.add_argument("--pythonpath", default=SUPPRESS, help="a directory to import from")
