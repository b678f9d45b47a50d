"""``manage.py dcron SUBCOMMAND``: each is a module of ``django_dcron.management.dcron``, imported only when it is asked for."""

from __future__ import annotations

import os
import select
import sys
from argparse import SUPPRESS, RawDescriptionHelpFormatter
from importlib import import_module
from io import TextIOWrapper
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

from django_dcron.management.dcron.exits import CANNOT, cannot

GROUPS = {
    "Look": {
        "list": "the jobs: when each runs next, how it went last, how it stands",
        "show": "one job: its definition, how it stands, what comes next",
        "next": "the next occurrences of a job, or of any schedule",
        "history": "the runs of a job, or one run with its attempts and log",
        "why": "why a job ran at a time, or did not",
        "simulate": "what would run between two times: the load, the fullest minutes, clashes",
        "nodes": "the nodes that schedule",
        "doctor": "look at everything, and say what is wrong",
    },
    "Act": {
        "run": "run a job now, and wait for its end",
        "pause": "no new occurrences of jobs, for now or until a time",
        "resume": "paused jobs go on",
        "cancel": "end runs that wait, have those that execute stop",
        "rerun": "finished runs once more",
        "backfill": "runs for occurrences that have passed and have none",
        "export": "write jobs as JSON or YAML",
        "import": "move jobs in from another scheduler, a crontab or an export",
        "sync": "bring the jobs declared in code into the database",
    },
    "Operate": {
        "prune": "delete the finished runs that are kept no longer",
        "start": "a node, in the foreground or in the background",
        "stop": "drain and stop the node that start began",
        "restart": "stop it, and start it with the same options",
        "state": "whether it runs, since when, and how it is",
        "health": "ask a node's health file, for a probe",
        "alert": "send a trial message through a channel for alerts",
    },
}
"""The subcommands as people see them. A line here, and a module of that name, is all it takes."""

SUBCOMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
UNCHECKED = {"health", "start", "stop", "restart", "state"}
"""Those that are asked often, need nothing of the project, or leave them to runcron: no system checks before them."""

EXIT_CODES = "Exit codes: 0 done, or yes; 1 no, or it has failed; 2 it cannot be done or told."
MORE = f"manage.py dcron SUBCOMMAND --help says more. {EXIT_CODES}"
WIDTH = 90
BROKEN_PIPE, INTERRUPTED = 141, 130
"""As a shell reports a process that SIGPIPE or SIGINT has ended."""


class Subcommand(Protocol):
    HELP: str
    EXAMPLES: str

    def add_arguments(self, parser: CommandParser) -> None: ...
    def run(self, command: BaseCommand, options: dict[str, Any]) -> None: ...


def load(name: str) -> Subcommand:
    module = f"{name}_" if iskeyword(name) else name
    return cast("Subcommand", import_module(f"django_dcron.management.dcron.{module}"))


class HelpFormatter(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Django's order of options, and texts as they are."""


class SubcommandParser(CommandParser):
    """Knows its options only when it is asked: ``dcron health`` imports nothing of the others."""

    def __init__(self, *, subcommand: str, **options: Any) -> None:
        super().__init__(**options)
        self._subcommand = subcommand
        self._loaded = False

    def load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        module = load(self._subcommand)
        self.description = fill(module.HELP, WIDTH)
        examples = "\n".join(f"  manage.py dcron {line}" for line in module.EXAMPLES.strip().splitlines())
        self.epilog = f"Examples:\n{examples}"
        module.add_arguments(self)
        _add_options_of_django(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.load()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if self.called_from_command_line:
            super().error(message)
        raise cannot(f"Error: {message}")


class Command(BaseCommand):
    help = "Tools for django-dcron."

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=HelpFormatter, **options)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.description = f"{self.help}\n\n{tree()}"
        parser.usage = "%(prog)s SUBCOMMAND [options]"
        parser.epilog = MORE
        subparsers = parser.add_subparsers(
            dest="subcommand", metavar="SUBCOMMAND", help=SUPPRESS, parser_class=SubcommandParser
        )
        for name in SUBCOMMANDS:
            added = subparsers.add_parser(
                name, subcommand=name, formatter_class=HelpFormatter, prog=f"{parser.prog} {name}"
            )
            if not parser.called_from_command_line:  # ``call_command`` wants to know all options beforehand
                added.load()

    def run_from_argv(self, argv: list[str]) -> None:
        if (
            sys.stdin is None
        ):  # closed by whoever called, as the others may be; what runs in the background wants one
            sys.stdin = open(os.devnull)  # noqa: SIM115 (until the process ends)
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None:
                stream = open(os.devnull, "w")  # noqa: SIM115
                setattr(sys, name, stream)
                setattr(self, name, OutputWrapper(stream))
            if isinstance(stream, TextIOWrapper):  # a name that the terminal cannot show ends nothing
                stream.reconfigure(errors="backslashreplace")
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> Any:
        if options["subcommand"] in UNCHECKED or options["subcommand"] is None:
            options |= {"skip_checks": True, "skip_checks_of_node": options.get("skip_checks", False)}
        try:
            return super().execute(*args, **options)
        except SystemCheckError as error:
            error.returncode = CANNOT
            raise

    def handle(self, *args: Any, subcommand: str | None, **options: Any) -> None:
        try:
            with override(None):  # English, whatever the project's LANGUAGE_CODE
                if subcommand is None:
                    self.stdout.write(f"{self.help}\n\n{tree()}\n\n{MORE}")
                else:
                    load(subcommand).run(self, options)
            self.stdout.flush()
        except (DatabaseError, InterfaceError) as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise cannot(f"The database does not answer: {said} (is it up and migrated?)") from error
        except UnicodeEncodeError as error:
            raise cannot(f"{error.object!r:.200} is not UTF-8.") from error
        except ImproperlyConfigured as error:
            raise cannot(f"The settings do not fit: {error}") from error
        except CommandError:
            self.stdout.flush()  # before the error's line, which goes to stderr
            raise
        except BrokenPipeError:
            if not _nobody_reads():  # it was another pipe, to a server
                raise
            # The interpreter must not try to write once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(BROKEN_PIPE)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


def _nobody_reads() -> bool:
    """Whether whoever reads the standard output has had enough."""
    stdout = select.poll()
    stdout.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _fd, event in stdout.poll(0))


def tree() -> str:
    """The subcommands, in groups."""
    width = max(map(len, SUBCOMMANDS))
    blocks = []
    for group, members in GROUPS.items():
        lines = (f"  {name:{width}}  {summary}" for name, summary in members.items())
        blocks.append("\n".join([f"{group}:", *lines]))
    return "\n\n".join(blocks)


def _add_options_of_django(parser: CommandParser) -> None:
    """Those of every management command are taken before the subcommand and after it; not given here, they stay as they
    were given there."""
    flags = {
        "--no-color": "no colours",
        "--force-color": "colours and drawn tables, also where there is no terminal",
        "--skip-checks": "no system checks",
        "--traceback": "on an error, where in the code it came from",
    }
    group = parser.add_argument_group("options of every command")
    for flag, text in flags.items():
        group.add_argument(flag, action="store_true", default=SUPPRESS, help=text)
    group.add_argument(
        "-v", "--verbosity", type=int, choices=[0, 1, 2, 3], default=SUPPRESS, help="0 to 3 (1)"
    )
    group.add_argument("--settings", default=SUPPRESS, help="the settings module to use")
    group.add_argument("--pythonpath", default=SUPPRESS, help="a directory to import from")
