"""Run the commands of the REST API's documentation in order and compare the responses."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client
from rest_framework import exceptions

from django_dcron.contrib.rest import problems
from django_dcron.contrib.rest.pagination import LARGEST_PAGE, PAGE, READ_LIMIT
from django_dcron.models import Freeze, Job, Run
from django_dcron.targets import functions
from tests.contrib.rest.conftest import operations

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "rest-api.md").read_text()
JOB, RUN, FREEZE = "17", "0192f0c1-2d3e-7a4b-8c5d-6e7f8091a2b3", "23"
"""The primary keys that the documentation uses."""


def commands_of(document: str) -> list[tuple[str, Any]]:
    """Return each command of a page with its response."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", document, re.DOTALL):
        for session in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _newline, answer = session.strip().rpartition("\n")
            if not answer.startswith("{"):  # the response has no body
                command, answer = session.strip(), "null"
            # "…" as a value matches anything. At the end of an object or a list, it means more
            # items.
            read = re.sub(r", …\}", ', "…": 0}', re.sub(r", …\]", ', "…"]', answer))
            found.append((command.replace("\\\n", " "), json.loads(read)))
    return found


def send_command(client: Client, command: str) -> Any:
    """Send the request that the curl command describes."""
    words = iter(shlex.split(command))
    assert next(words) == "curl"
    method, data, headers, url = None, "", {}, ""
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-d":
            data = next(words)
            json.loads(data)
        elif word == "-H":
            name, _colon, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-u":
            assert next(words) == "admin:secret"
        else:
            assert not url, command
            url = word
    parts = urlsplit(url)
    content_type = headers.pop("Content-Type", "")
    return client.generic(
        method or ("POST" if data else "GET"),
        parts.path,
        data,
        content_type=content_type,
        headers=headers,
        QUERY_STRING=parts.query,
    )


def shows(shown: Any, real: Any) -> bool:
    if shown == "…":
        return bool(real)
    if isinstance(shown, dict):
        whole = "…" in shown or shown.keys() == real.keys()
        return whole and all(
            shows(value, real[name]) for name, value in shown.items() if name != "…"
        )
    if isinstance(shown, list) and shown and shown[-1] == "…" and len(shown) > 1:
        return all(map(shows, shown[:-1], real))
    if isinstance(shown, list):
        return len(shown) == len(real) and all(map(shows, shown, real))
    return bool(shown == real)


def test_documented_commands_return_the_documented_responses(
    admin_user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(functions.registered, "shop.send_invoices", lambda: None)
    client = Client()
    client.force_login(admin_user)
    keys: dict[str, str] = {}

    for command, shown in (commands := commands_of(DOCUMENT)):
        for key, real in keys.items():
            command = re.sub(rf"\b{key}\b", real, command)
            shown = json.loads(re.sub(rf"\b{key}\b", real, json.dumps(shown, ensure_ascii=False)))
        response = send_command(client, command)
        if not keys:
            keys[JOB] = str(Job.objects.get().pk)
            shown["id"] = int(keys[JOB])
        if RUN not in keys and Run.objects.exists():
            keys[RUN] = str(Run.objects.get().pk)
            shown = json.loads(json.dumps(shown, ensure_ascii=False).replace(RUN, keys[RUN]))
        if FREEZE not in keys and Freeze.objects.exists():
            keys[FREEZE] = str(Freeze.objects.get().pk)
            shown["id"] = int(keys[FREEZE])
        assert shows(shown, response.json()), (command, response.content.decode())
    assert len(commands) == 27


def test_every_operation_is_documented() -> None:
    rows = re.findall(r"^\| `([A-Z]+) (\S+)` \| .* \| (`.*`) \|$", DOCUMENT, re.MULTILINE)
    listed = [(method, path, tuple(re.findall(r"`(\w+)`", needs))) for method, path, needs in rows]
    offered = [
        (method, re.sub(r"<str:(\w+)>", r"{\1}", url), operation.permissions)
        for method, url, operation in operations()
    ]
    assert sorted(listed) == sorted(offered)


def test_every_error_code_is_documented() -> None:
    table = {
        code: int(status)
        for statuses, codes in re.findall(r"^\| (\d[\d, ]*) \| (`.*?`) \|", DOCUMENT, re.MULTILINE)
        for status in statuses.split(", ")[-1:]
        for code in re.findall(r"`(\w+)`", codes)
    }
    own_classes = [
        each
        for each in vars(problems).values()
        if isinstance(each, type) and each.__module__ == problems.__name__
    ]
    raised = [each for each in own_classes if issubclass(each, exceptions.APIException)]
    assert len(raised) == 7
    for each in raised:
        assert table[each.default_code] == each.status_code


def test_documented_limits_match_the_code() -> None:
    assert f"{READ_LIMIT:,} runs per page" in DOCUMENT
    assert f"`limit` is {PAGE} by default and at most {LARGEST_PAGE}" in DOCUMENT
