"""Arguments are shown without the values of secrets."""

import copy
import json
from typing import Any

import pytest
from pytest_django import Settings

from django_dcron.targets import (
    MASK,
    has_unrestored_mask,
    redact_changed_secrets,
    redact_secrets,
    restore_secrets,
)
from django_dcron.targets.redaction import CHANGED_MASK

SECRETS = [
    ({"password": "x"}, {"password": MASK}),
    ({"DB_PASSWORD": "x", "city": "Berlin"}, {"DB_PASSWORD": MASK, "city": "Berlin"}),
    ({"apiKey": 12345}, {"apiKey": MASK}),
    ({"auth": {"access_token": ["a", "b"]}}, {"auth": {"access_token": MASK}}),
    ([{"client_secret": "x"}, 1], [{"client_secret": MASK}, 1]),
    (["--password=x", "--verbose"], [f"--password={MASK}", "--verbose"]),
    (["--api-token", "x", "y"], ["--api-token", MASK, "y"]),
    (["TOKEN=x"], [f"TOKEN={MASK}"]),
    (["-password", "x"], ["-password", MASK]),
    (["-H", "X-Api-Key: x y"], ["-H", f"X-Api-Key: {MASK}"]),
    ({"dsn": "postgres://shop:x@db/shop"}, {"dsn": f"postgres://shop:{MASK}@db/shop"}),
    (["https://:x@a/ amqp://b:y@c"], [f"https://:{MASK}@a/ amqp://b:{MASK}@c"]),
    (["https://a:x@b/?token=y"], [f"https://a:{MASK}@b/?token={MASK}"]),
]
NO_SECRETS = [
    {"token": None, "password": "", "has_key": True},
    ["password", "a key = b", "--days=3"],
    {"city": "Berlin", "days": [1, 2]},
    ["https://db:5432/a@b", "https://user@db", "cachekey:users", "a key: b", "token: "],
    None,
]


@pytest.mark.parametrize(("value", "expected"), SECRETS)
def test_secrets_are_masked_in_a_copy(value: Any, expected: Any) -> None:
    before = copy.deepcopy(value)
    assert redact_secrets(value) == expected
    assert value == before


@pytest.mark.parametrize("value", NO_SECRETS)
def test_values_without_secrets_are_unchanged(value: Any) -> None:
    assert redact_secrets(value) == value


def test_redact_setting_selects_the_masked_names(settings: Settings) -> None:
    settings.DCRON_REDACT = ["PIN"]
    assert redact_secrets({"pin": "1", "password": "x"}) == {"pin": MASK, "password": "x"}
    settings.DCRON_REDACT = []
    assert redact_secrets({"password": "x"}) == {"password": "x"}


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ({"token": "a", "n": 1}, {"token": "b", "n": 1}, {"token": CHANGED_MASK, "n": 1}),
        ({"token": "a", "n": 1}, {"token": "a", "n": 2}, {"token": MASK, "n": 2}),
        ({"n": 1}, {"n": 1, "token": "a"}, {"n": 1, "token": MASK}),
        ({"token": "a"}, {"token": ""}, {"token": ""}),
        ({"a": [{"key": [1]}]}, {"a": [{"key": [2]}, 3]}, {"a": [{"key": CHANGED_MASK}, 3]}),
        (["--token=a", "--pin", "b"], ["--token=c", "--pin"], [f"--token={CHANGED_MASK}", "--pin"]),
        (["redis://:a@cache"], ["redis://:b@cache"], [f"redis://:{CHANGED_MASK}@cache"]),
        (["redis://:a@cache/0"], ["redis://:b@cache/1"], [f"redis://:{CHANGED_MASK}@cache/1"]),
        (
            ["https://:x@a/ amqp://b:y@c"],
            ["https://:x@a/ amqp://b:z@c"],
            [f"https://:{MASK}@a/ amqp://b:{CHANGED_MASK}@c"],
        ),
        (
            ["https://a:x@b/?token=y"],
            ["https://a:z@b/?token=y"],
            [f"https://a:{CHANGED_MASK}@b/?token={MASK}"],
        ),
        ({"dsn": "redis://cache"}, {"dsn": "redis://:a@cache"}, {"dsn": f"redis://:{MASK}@cache"}),
        (["-v", "--token", "a"], ["--token", "a"], ["--token", MASK]),
        (["a"], ["a", "b", "--token", "c"], ["a", "b", "--token", MASK]),
        ([1], {"token": "a"}, {"token": MASK}),
    ],
)
def test_changed_secrets_are_marked(before: Any, after: Any, shown: Any) -> None:
    assert redact_changed_secrets(after, before) == shown
    assert redact_changed_secrets(after, after) == redact_secrets(after)


@pytest.mark.parametrize("value", [value for value, _expected in SECRETS] + NO_SECRETS)
def test_restore_replaces_masks_with_the_original_values(value: Any) -> None:
    assert restore_secrets(redact_secrets(value), value) == value
    marked = json.loads(json.dumps(redact_secrets(value)).replace(MASK, CHANGED_MASK))
    assert restore_secrets(marked, value) == value


def test_restore_keeps_values_that_were_edited() -> None:
    own = {"password": "x", "city": "Berlin", "list": ["--token=t"]}
    sent = redact_secrets(own) | {"city": "Rome", "list": ["--token=other"], "new": MASK}
    assert restore_secrets(sent, own) == {
        "password": "x",
        "city": "Rome",
        "list": ["--token=other"],
        "new": MASK,
    }
    assert restore_secrets({"password": "mine"}, own) == {"password": "mine"}


@pytest.mark.parametrize(
    "moved",
    [
        ["--name", MASK],
        ["--name", CHANGED_MASK],
        ["x", MASK, "y"],
        [["--password"], MASK],
        {"list": ["--name", MASK]},
    ],
)
def test_mask_that_was_moved_does_not_show_the_secret(moved: Any) -> None:
    """A user who may choose the arguments of a run, but not see secrets, could move the mask."""
    own: Any = ["--password", "x"]
    own = {"list": own} if isinstance(moved, dict) else own
    assert restore_secrets(moved, own) == moved
    assert has_unrestored_mask(moved, own)


@pytest.mark.parametrize(
    ("value", "own"),
    [
        ({"password": MASK}, {}),
        ({"password": CHANGED_MASK}, {}),
        ({"password": [MASK]}, {}),
        ([{"token": MASK}], [{"city": "Rome"}]),
        (["--token", MASK], []),
        (["-v", f"--token={MASK}"], ["--token=x"]),
        ({"dsn": f"postgres://shop:{MASK}@db/shop"}, {}),
        ({"dsn": f"postgres://shop:{MASK}@new/shop"}, {"dsn": "postgres://shop:x@old/shop"}),
        ({"renamed": MASK}, {"password": "x"}),
        ({"password": "x", "also": MASK}, {"password": "x"}),
    ],
)
def test_mask_without_its_secret_is_found(value: Any, own: Any) -> None:
    assert has_unrestored_mask(restore_secrets(value, own), own)


@pytest.mark.parametrize(
    ("value", "own"),
    [
        ({"line": MASK}, {}),
        ([MASK, 1], []),
        ({"line": MASK, "password": "x"}, {"line": MASK, "password": "y"}),
        ({"password": "x"}, {}),
        ({"password": MASK, "city": "Oslo"}, {"password": "x"}),
    ],
)
def test_text_that_masks_nothing_is_no_unrestored_mask(value: Any, own: Any) -> None:
    assert not has_unrestored_mask(restore_secrets(value, own), own)
