"""Test that the German and Chinese translations are complete and valid, and work on every page."""

# ruff: noqa: RUF001 -- Chinese has its own colon, comma and parentheses

import gettext
import re
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import django
import pytest
from django.test import Client
from django.urls import reverse
from django.utils.html import escape
from pytest_django import Settings

import django_dcron
from django_dcron import control
from django_dcron.models import Attempt, Cursor, Job, Node
from tests.admin.conftest import (
    action_url,
    add_url,
    errors,
    job_url,
    list_url,
    make_attempt,
    make_job,
    make_run,
    messages,
    run_url,
)


class Texts(NamedTuple):
    next_run: str
    words: str
    schedule: str
    target: str
    resume: str
    backfill: str


TEXTS = {
    "de": Texts(
        "Nächster Lauf",
        "Um 03:30",
        "Minute: 61 liegt außerhalb des Bereichs (erlaubt: 0-59)",
        "Unbekanntes Ziel 'tests.app.tasks.okk': kein Task und keine @cron-Funktion hat diesen "
        "Namen. Meinten Sie 'tests.app.tasks.ok'?",
        "report lässt sich nicht fortsetzen: sein Zeitplan hat keinen weiteren Termin.",
        "report lässt sich noch nicht nachholen: Der Job wurde ohne control.save geändert, und "
        "noch kein Knoten hat die Änderung verarbeitet. Versuchen Sie es erneut, wenn ein Knoten "
        "läuft.",
    ),
    "zh_Hans": Texts(
        "下次运行",
        "在 03:30",
        "分钟：61 超出范围（允许：0-59）",
        "未知目标 'tests.app.tasks.okk'：没有任务或 @cron 函数使用此名称。"
        "您是否想输入 'tests.app.tasks.ok'？",
        "无法恢复 report：其计划不再有触发时间点。",
        "暂时无法补跑 report：它未通过 control.save 更改，且尚无节点处理该更改。"
        "请在有节点运行时重试。",
    ),
}
LOCALE = Path(django_dcron.__file__).parent / "locale"
PLACEHOLDER = re.compile(r"%\(\w+\)[sd]|%%|\{\w*\}|%[sd]")


def po_of(language: str) -> str:
    return (LOCALE / language / "LC_MESSAGES" / "django.po").read_text()


@pytest.mark.parametrize("language", TEXTS)
def test_every_message_is_translated_and_not_fuzzy(language: str) -> None:
    entries = po_of(language).split("\n\n")[1:]
    assert len(entries) > 500
    assert [
        entry for entry in entries if re.search(r'^msgstr(\[\d\])? ""$(?!\n")', entry, re.MULTILINE)
    ] == []
    assert [entry for entry in entries if "fuzzy" in entry.split("msgid")[0]] == []


def read_catalog(locale: Path, language: str) -> dict[str, str]:
    """Return the compiled translations of whole texts, without their plurals."""
    with (locale / language / "LC_MESSAGES" / "django.mo").open("rb") as compiled:
        catalog: dict[object, str] = gettext.GNUTranslations(compiled)._catalog  # type: ignore[attr-defined]
    return {
        text: translated for text, translated in catalog.items() if isinstance(text, str) and text
    }


@pytest.mark.parametrize("language", TEXTS)
def test_translations_do_not_change_djangos_own_texts(language: str) -> None:
    """A translation in one app applies to the whole project: Django 6.1 has a button "Run"."""
    own, changed = read_catalog(LOCALE, language), {}
    for locale in Path(django.__file__).parent.glob("**/locale"):
        source = (locale / "en" / "LC_MESSAGES" / "django.po").read_text()
        theirs = read_catalog(locale, language)
        for text in re.findall(r'^(?:\n|#.*\n)msgid "(.+)"$', source, re.MULTILINE):
            translated = own.get(text)
            if translated and translated.rstrip("。") != theirs.get(text, "").rstrip("。"):
                changed[text] = translated
    changed.pop("Error:", None)  # used as Django does, whose translations are incomplete
    assert changed == {}


@pytest.mark.parametrize("language", TEXTS)
def test_compiled_translations_keep_placeholders(language: str) -> None:
    whole = read_catalog(LOCALE, language)
    assert len(whole) == len(re.findall(r'^msgstr "', po_of(language), re.MULTILINE)) - 1
    wrong = {
        text: translated
        for text, translated in whole.items()
        if sorted(PLACEHOLDER.findall(text)) != sorted(PLACEHOLDER.findall(translated))
    }
    assert wrong == {}


def pages() -> list[str]:
    """Return the URLs of the pages of a job with some history and of a node."""
    job = make_job(tags=["billing"], max_attempts=3)
    failed = make_run(job, state="failed", reason="no", missed_before=2)
    failed.missed_from = failed.scheduled_at - timedelta(hours=1)
    failed.started_at = failed.finished_at = failed.scheduled_at
    failed.save()
    attempt = make_attempt(
        failed, outcome="failed", exception_class="ValueError", message="no", log="a line"
    )
    later = failed.scheduled_at + timedelta(minutes=5)
    running = make_run(job, later, state="running", started_at=later, heartbeat_at=later)
    make_attempt(running, progress_done=1, progress_total=2)
    node = Node.objects.create(
        id="a-1",
        name="a",
        host="h",
        pid=1,
        version="1",
        started_at=later,
        heartbeat_at=later,
        shard_count=64,
    )
    why = reverse("admin:django_dcron_job_why", args=[job.pk])
    return [
        *(list_url(model) for model in ("dashboard", "job", "run", "attempt", "node")),
        *(add_url(), job_url(job), run_url(failed), run_url(running)),
        *(
            f"{why}?at={at:%Y-%m-%dT%H:%M}"
            for at in (later, later + timedelta(hours=1), later.replace(year=2090))
        ),
        reverse("admin:django_dcron_job_history", args=[job.pk]),
        reverse("admin:django_dcron_job_backfill", args=[job.pk]),
        reverse("admin:django_dcron_attempt_change", args=[attempt.pk]),
        reverse("admin:django_dcron_node_change", args=[node.pk]),
    ]


@pytest.mark.parametrize("language", TEXTS)
def test_every_page_works_in_language(
    admin_client: Client, settings: Settings, language: str
) -> None:
    urls = pages()
    settings.LANGUAGE_CODE = language.replace("_", "-").lower()
    assert [url for url in urls if admin_client.get(url).status_code != 200] == []
    assert TEXTS[language].next_run in admin_client.get(job_url(Job.objects.get())).content.decode()
    assert TEXTS[language].words in admin_client.get(job_url(Job.objects.get())).content.decode()
    assert Attempt.objects.count() == 2


@pytest.mark.parametrize("language", TEXTS)
def test_errors_are_translated(admin_client: Client, settings: Settings, language: str) -> None:
    settings.LANGUAGE_CODE = language.replace("_", "-").lower()
    texts = TEXTS[language]
    typed = {"name": "x", "schedule": "61 * * * *", "timezone": "UTC"}
    typed["target"] = "tests.app.tasks.okk"
    refused = admin_client.post(add_url(), typed)
    assert errors(refused)["schedule"] == [texts.schedule]
    assert errors(refused)["target"] == [texts.target]
    preview = admin_client.post(reverse("admin:django_dcron_job_preview"), typed)
    assert escape(texts.schedule) in preview.content.decode()
    job = make_job()
    control.pause(job)
    Job.objects.filter(pk=job.pk).update(schedule="@at 2020-01-01T00:00")
    assert messages(admin_client.post(action_url(job, "resume"), follow=True)) == [
        f"“{job}”: {texts.resume}"
    ]
    Cursor.objects.filter(pk=job.pk).update(problem="minute: 61 is out of range (allowed: 0-59)")
    Job.objects.filter(pk=job.pk).update(schedule="61 * * * *", enabled=True)
    assert texts.schedule in admin_client.get(list_url("job")).content.decode()
    assert texts.schedule in admin_client.get(job_url(job)).content.decode()
    url = reverse("admin:django_dcron_job_backfill", args=[job.pk])
    page = admin_client.post(
        url, {"start": "2026-01-01T00:00", "end": "2026-01-02T00:00", "limit": "5"}
    )
    assert page.context["form"].non_field_errors() == [texts.backfill]
