"""Test that the commands, options and paths in ``docs/how-to/deployment.md`` exist.

They appear in units, manifests and crontabs.
"""

import re
import shlex
from collections.abc import Iterator
from configparser import ConfigParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import load_command_class
from django.core.management.base import CommandError

from django_dcron.monitoring.http.routes import routes
from django_dcron.scheduler.health_file import HealthFile, probe

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "deployment.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
UNITS = dict(
    re.findall(
        r"/etc/systemd/system/([\w.-]+)`.*?^```ini\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL
    )
)
MANIFESTS = [
    document for kind, block in BLOCKS if kind == "yaml" for document in yaml.safe_load_all(block)
]


def string_lists_in(value: Any) -> Iterator[list[str]]:
    """Yield the lists of strings in a manifest. Manifests write commands as such lists."""
    if isinstance(value, dict):
        for each in value.values():
            yield from string_lists_in(each)
    elif isinstance(value, list):
        if all(isinstance(each, str) for each in value):
            yield value
        for each in value:
            yield from string_lists_in(each)


def management_commands() -> list[list[str]]:
    written = re.findall(r"manage\.py ((?:runcron|dcron|migrate)\b[^\n`'|&>)]*)", DOCUMENT)
    found = [shlex.split(text) for text in written]
    listed = (command for command in string_lists_in(MANIFESTS) if "manage.py" in command)
    return [*found, *(command[command.index("manage.py") + 1 :] for command in listed)]


def test_documented_commands_and_options_exist() -> None:
    commands = management_commands()
    assert {"runcron", "dcron", "migrate"} == {name for name, *_ in commands}
    used = {arguments[0] for name, *arguments in commands if name == "dcron"}
    assert {"start", "stop", "restart", "state", "health"} < used
    assert {"run", "pause", "resume", "cancel", "doctor"} < used
    for name, *arguments in commands:
        if name != "migrate" and arguments:
            load_command_class("django_dcron", name).create_parser("manage.py", name).parse_args(
                arguments
            )
    with pytest.raises(CommandError, match="--none"):
        load_command_class("django_dcron", "runcron").create_parser("manage.py", "").parse_args(
            ["--none"]
        )


def test_documented_probes_use_existing_paths_and_modules(tmp_path: Path) -> None:
    paths = re.findall(r"httpGet: \{path: (/\w+),", DOCUMENT)
    assert set(paths) == {"/livez", "/readyz"}
    assert set(paths) <= routes(health=lambda: pytest.fail("not called")).keys()
    modules = set(re.findall(r"python[\"']?,? [\"']?-m[\"']?,? [\"']?([\w.]+)", DOCUMENT))
    assert modules == {HealthFile.__module__}
    assert find_spec(probe.__module__)
    probed, written = (
        set(re.findall(pattern, DOCUMENT))
        for pattern in (r"health_file\"?,? \"?(/[\w./]+)", r"--health-file\"?,? \"?(/[\w./]+)")
    )
    assert probed == written == {"/run/dcron/health.json"}


def test_systemd_units_are_valid_and_consistent() -> None:
    assert set(UNITS) == {
        "dcron.service",
        "dcron-health.timer",
        "dcron-health.service",
        "shop-worker.service",
        "shop.service",
    }
    parsed = {}
    for name, text in UNITS.items():
        parsed[name] = ConfigParser(interpolation=None)
        parsed[name].optionxform = str  # type: ignore[assignment,method-assign]
        parsed[name].read_string(text)
    service = parsed["dcron.service"]
    assert "dcron-health.timer" in service["Unit"]["Wants"]
    assert parsed["dcron-health.timer"]["Unit"]["PartOf"] == "dcron.service"
    assert (
        "systemctl try-restart dcron.service"
        in parsed["dcron-health.service"]["Service"]["ExecStart"]
    )
    assert service["Service"]["KillMode"] == "mixed"
    assert "KillSignal" not in service["Service"], "systemd's default, SIGTERM, drains the node"


def test_website_stops_later_than_its_workers() -> None:
    """systemd must not kill gunicorn while its workers still wait for their runs."""
    parsed = ConfigParser(interpolation=None)
    parsed.read_string(UNITS["shop.service"])
    graceful = re.search(r"--graceful-timeout (\d+)", parsed["Service"]["ExecStart"])
    assert graceful
    assert int(parsed["Service"]["TimeoutStopSec"]) > int(graceful[1])
    assert parsed["Service"]["KillMode"] == "mixed"


def test_manifests_give_node_time_to_drain() -> None:
    deployment = next(document for document in MANIFESTS if document.get("kind") == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 60
    assert (
        deployment["spec"]["selector"]["matchLabels"]
        == deployment["spec"]["template"]["metadata"]["labels"]
    )
    (port,) = pod["containers"][0]["ports"]
    assert pod["containers"][0]["command"][-1] == f"0.0.0.0:{port['containerPort']}"
    compose = next(document["services"] for document in MANIFESTS if "services" in document)
    assert compose["dcron"]["stop_grace_period"] == "60s"
