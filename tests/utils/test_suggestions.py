"""Test which names are suggested for a misspelled one."""

import pytest

from django_dcron.utils.suggestions import did_you_mean, similar_names

SUBCOMMANDS = ["list", "show", "history", "pause", "prune", "resume", "start", "state", "restart"]


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("lsit", ["list"]),
        ("hist", ["history"]),
        ("puase", ["pause"]),
        ("PAUSE", ["pause"]),
        ("stats", ["start", "state"]),
        ("unpause", ["pause"]),
        ("status", []),
        ("delete", []),
        ("st", []),
        ("", []),
    ],
)
def test_only_similar_names_are_suggested(name: str, suggested: list[str]) -> None:
    assert similar_names(name, SUBCOMMANDS) == suggested


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Berlin", "Europe/Berlin"),
        ("send_report", "shop.tasks.send_report"),
        ("clearsessions", "command:clearsessions"),
        ("beat", "django-celery-beat"),
    ],
)
def test_name_is_suggested_for_its_last_part(name: str, known: str) -> None:
    assert similar_names(name, ["Other/Merlin", known, "tasks.send_repair"]) == [known]


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("send_invoice", ["shop.cron.send_invoices"]),
        ("Berln", ["Europe/Berlin"]),
        ("EuropeBerlin", ["Europe/Berlin"]),
        ("cron", []),
        ("UT", []),
    ],
)
def test_name_is_suggested_for_its_misspelled_last_part(name: str, suggested: list[str]) -> None:
    assert similar_names(name, ["Europe/Berlin", "Etc/UTC", "shop.cron.send_invoices"]) == suggested


@pytest.mark.parametrize(
    ("name", "known", "suggested"),
    [
        ("orders", ["order", "import-orders", "export-orders", "sync-orders"], ["order"]),
        ("reports", ["report", "weekly-reports"], ["report"]),
        ("orders", ["import-orders", "export-orders"], ["export-orders", "import-orders"]),
        (
            "nightly-orders",
            ["nightly-order", "x-nightly-orders"],
            ["nightly-order", "x-nightly-orders"],
        ),
    ],
)
def test_typo_is_likelier_than_a_missing_first_part(
    name: str, known: list[str], suggested: list[str]
) -> None:
    assert similar_names(name, known) == suggested


@pytest.mark.parametrize(
    ("name", "is_similar"),
    [
        ("orders.cron.broken", False),
        ("orders.cron.pol", True),
        ("order.cron.poll", True),
    ],
)
def test_last_parts_must_be_similar_too(name: str, is_similar: bool) -> None:
    assert bool(similar_names(name, ["orders.cron.poll"])) is is_similar


def test_number_of_suggestions_is_limited() -> None:
    assert len(similar_names("job-0", [f"job-{n}" for n in range(1, 9)], most=2)) == 2


def test_suggestion_is_empty_without_a_similar_name() -> None:
    assert did_you_mean("xyz", SUBCOMMANDS) == ""
    assert did_you_mean("lsit", SUBCOMMANDS) == " Did you mean 'list'?"
