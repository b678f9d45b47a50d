"""A template returns the text that would be encoded without it."""

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.app.amqp import AMQP
from hypothesis import given
from hypothesis import strategies as st

from django_dcron.dispatch import message_templates as module
from django_dcron.dispatch.base import DueRun
from django_dcron.dispatch.celery import CeleryDispatcher
from django_dcron.dispatch.message_templates import MessageTemplates
from django_dcron.dispatch.messages import build_message
from django_dcron.dispatch.redis_queue import QueueDestination, encode_message
from tests.scheduler.stand_ins import due_run

NAMES = ["plain", "100 %", "%(tag)s", "„täglich“ 每日 😀", "\\ \" ' \n\x00", ""]


class Encoder:
    """Encodes messages, and counts them."""

    def __init__(self, serializer: str = "json") -> None:
        self.app = Celery("templates", broker="redis://", set_as_current=False)
        self.serializer = serializer
        self.count = 0

    def __call__(self, run: DueRun, tag: str) -> bytes:
        self.count += 1
        content = build_message(self.app, run, "node-1", self.serializer)
        return encode_message(*content, QueueDestination("100 % späte", 3), {}, tag)


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_template_returns_the_encoded_message(serializer: str) -> None:
    templates, encode = MessageTemplates(), Encoder(serializer)
    templates.encode("kind", due_run("a"), "tag", encode)
    made = encode.count
    for name in NAMES:
        run, tag = due_run(name), str(uuid4())
        text = templates.encode("kind", run, tag, encode)
        assert encode.count == made, "no message was encoded without the template"
        assert text == Encoder(serializer)(run, tag)


ENCODE = Encoder()
TEMPLATES = MessageTemplates()


@given(st.text(), st.uuids())
def test_template_returns_the_encoded_message_for_any_name(name: str, run_id: Any) -> None:
    run = due_run(name, run_id=run_id)
    assert TEMPLATES.encode("kind", run, "tag", ENCODE) == ENCODE(run, "tag")


def test_messages_with_further_differences_have_no_template() -> None:
    encode = Encoder()

    def numbered(run: DueRun, tag: str) -> bytes:
        text = encode(run, tag).decode()
        return text.replace('"lang": "py"', f'"lang": "py{encode.count}"').encode()

    templates = MessageTemplates()
    texts = [templates.encode("kind", due_run("a"), "tag", numbered) for _ in range(3)]
    languages = [json.loads(text)["headers"]["lang"] for text in texts]
    assert languages == [f"py{encode.count - n}" for n in (2, 1, 0)]


def test_number_of_templates_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TEMPLATES", 2)
    templates, encode, run = MessageTemplates(), Encoder(), due_run("a")
    for kind in ("a", "b", "c"):
        templates.encode(kind, run, "tag", encode)
    before = encode.count
    for kind in ("a", "b", "c"):
        assert templates.encode(kind, run, "tag", encode) == encode(run, "tag")
    assert encode.count == before + 3 + 1, "three for comparison, one without a template"


# --- in the dispatcher --------------------------------------------------------------------------


@pytest.fixture
def prepared() -> Callable[..., dict[str, Any]]:
    """Prepares a message, and returns its decoded headers and properties."""
    app = Celery("templates", broker="redis://", set_as_current=False)
    dispatcher = CeleryDispatcher(app)

    def prepare(node: str = "", **fields: Any) -> dict[str, Any]:
        dispatcher.node = node
        run = DueRun(**{name: getattr(due_run("a"), name) for name in DueRun.__slots__} | fields)
        text = dispatcher.prepare(run).text
        assert text is not None
        message: dict[str, Any] = json.loads(text)
        return message["headers"] | message["properties"]

    prepare.dispatcher = dispatcher  # type: ignore[attr-defined]
    return prepare


@pytest.mark.parametrize(
    ("fields", "header", "expected"),
    [
        ({"timeout": timedelta(seconds=90)}, "timelimit", 2 * [90 + 3600 + 10]),
        ({"priority": 7}, "priority", 7),
        ({"queue": "other"}, "delivery_info", {"exchange": "", "routing_key": "other"}),
        ({"attempt": 12}, "argsrepr", None),
        ({"node": "node-2"}, "dcron_node", "node-2"),
    ],
)
def test_differences_between_messages_have_their_own_templates(
    prepared: Callable[..., dict[str, Any]], fields: dict[str, Any], header: str, expected: Any
) -> None:
    for _ in range(2):
        usual, special = prepared(), prepared(**fields)
        assert usual.get(header) != special[header]
        if expected is not None:
            assert special[header] == expected
        else:
            assert special[header].endswith(", 12)")


def test_instrumentation_of_celery_sees_each_message(
    prepared: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared()
    original = AMQP.as_task_v2

    def instrumented(self: Any, *args: Any, **options: Any) -> Any:
        message = original(self, *args, **options)
        message.headers["trace"] = message.headers["id"]
        return message

    monkeypatch.setattr(AMQP, "as_task_v2", instrumented)
    for _ in range(2):
        headers = prepared()
        assert headers["trace"] == headers["id"]


def test_forked_process_has_its_own_templates(
    prepared: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared()
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    prepared.dispatcher._reset_after_fork()  # type: ignore[attr-defined]
    assert prepared()["origin"].startswith("gen4711@")
