"""Test shadows: runs that are claimed and recorded but not executed, and the shadow report."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from django_dcron import control, targets
from django_dcron.contrib.importers.comparison import awaiting_handover, compare_entries
from django_dcron.contrib.importers.entry_plans import ComparisonOptions, ImportOutcome
from django_dcron.contrib.importers.report import (
    Coverage,
    Difference,
    DifferenceKind,
    ShadowComparison,
    compare_shadows,
)
from django_dcron.contrib.importers.source_contents import SourceEntry, SourceRuns
from django_dcron.contrib.importers.writing import apply_entry_plans
from django_dcron.exceptions import InvalidArguments, UnknownTarget
from django_dcron.management.dcron.exits import USAGE_ERROR
from django_dcron.management.dcron.import_report import difference_reason, nothing_comparable_text
from django_dcron.management.dcron.output import iso, time_text
from django_dcron.models import Job, Run
from django_dcron.models.job_states import EXHAUSTED
from django_dcron.policies.lifecycle import State, Trigger
from tests.contrib.importers.conftest import Install
from tests.factories import make_job
from tests.management.calling import call
from tests.refusals import refusal
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db

START = datetime(2026, 6, 1, 12, tzinfo=UTC)
NOW = START + timedelta(minutes=30)
VALUES = {
    "target": "tests.app.tasks.echo",
    "schedule": "* * * * *",
    "enabled": True,
    "pause_reason": "",
}


def entry(**values: Any) -> SourceEntry:
    return SourceEntry("row a", "a", VALUES | values)


def at(minutes: float, seconds: float = 0) -> datetime:
    return START + timedelta(minutes=minutes, seconds=seconds)


# --- The target -----------------------------------------------------------------------------------


def test_shadow_checks_arguments_and_does_nothing() -> None:
    shadow = targets.get("shadow:tests.app.tasks.fail")
    real = targets.get("tests.app.tasks.fail")
    shadow.call(targets.Invocation(args=["boom"]))
    assert (shadow.signature, shadow.route_name, shadow.kind) == (
        real.signature,
        real.route_name,
        real.kind,
    )
    with pytest.raises(InvalidArguments):
        shadow.check_arguments([], {"no": 1})


def test_shadow_of_an_unknown_target_is_refused() -> None:
    with refusal(UnknownTarget, "unknown_target", target="'tests.app.tasks.gone'"):
        targets.get("shadow:tests.app.tasks.gone")


def test_new_jobs_cant_be_both_shadows_and_paused(tmp_path: Path) -> None:
    crontab = tmp_path / "crontab"
    crontab.write_text("* * * * * echo\n")
    result = call("import", str(crontab), "--format", "crontab", "--shadow", "--disabled")
    assert result.code == USAGE_ERROR
    assert "--shadow and --disabled" in result.err
    assert "Use only --shadow" in result.err


@pytest.mark.django_db(transaction=True)
def test_run_of_a_shadow_is_recorded_but_not_executed(
    start_worker: Any, start_runcron: Any
) -> None:
    job = make_job(target="shadow:tests.app.tasks.witness", schedule="* * * * * *")
    start_worker(pool="threads")
    start_runcron()
    wait_until(
        lambda: Run.objects.filter(job=job, state=State.SUCCEEDED).exists(), 60, what="a run"
    )
    from tests.app.models import Witness

    assert not Witness.objects.exists()


# --- Switching a shadow on and off ----------------------------------------------------------------


def test_job_is_a_shadow_until_the_handover() -> None:
    list(apply_entry_plans(compare_entries([entry()], options=ComparisonOptions(shadow=True))))
    job = Job.objects.get()
    assert job.target == "shadow:tests.app.tasks.echo"
    assert [
        plan.outcome for plan in compare_entries([entry()], options=ComparisonOptions(shadow=True))
    ] == [ImportOutcome.SAME]
    assert [plan.outcome for plan in compare_entries([entry()])] == [ImportOutcome.SAME]
    (switch,) = compare_entries([entry()], options=ComparisonOptions(take_over=True))
    assert dict(switch.changes) == {
        "target": ("shadow:tests.app.tasks.echo", "tests.app.tasks.echo")
    }
    list(apply_entry_plans([switch]))
    # The job isn't turned into a shadow again.
    assert [
        plan.outcome for plan in compare_entries([entry()], options=ComparisonOptions(shadow=True))
    ] == [ImportOutcome.SAME]
    job.refresh_from_db()
    assert job.target == "tests.app.tasks.echo"


def test_job_imported_paused_becomes_a_shadow_but_an_enabled_one_does_not() -> None:
    list(
        apply_entry_plans(
            compare_entries([entry()], options=ComparisonOptions(disabled=True, source="celery"))
        )
    )
    (shadow,) = compare_entries([entry()], options=ComparisonOptions(shadow=True, source="celery"))
    assert {*shadow.changes} == {"target", "enabled", "pause_reason"}
    list(apply_entry_plans([shadow]))
    job = Job.objects.get()
    assert (job.target, job.enabled) == ("shadow:tests.app.tasks.echo", True)
    list(
        apply_entry_plans(
            compare_entries([entry()], options=ComparisonOptions(take_over=True, source="celery"))
        )
    )
    assert Job.objects.get().target == "tests.app.tasks.echo"
    (same,) = compare_entries([entry()], options=ComparisonOptions(shadow=True, source="celery"))
    assert same.outcome is ImportOutcome.SAME


@pytest.mark.parametrize("take_over", [False, True], ids=["scheduler", "crontab"])
def test_job_whose_target_a_person_changed_is_not_started_as_a_shadow(take_over: bool) -> None:
    options = ComparisonOptions(source="celery", take_over=take_over)
    paused, shadow = replace(options, disabled=True), replace(options, shadow=True)
    list(apply_entry_plans(compare_entries([entry()], options=paused)))
    job = Job.objects.get()
    job.target = "tests.app.tasks.fail"
    control.save(job)
    plans = list(apply_entry_plans(compare_entries([entry()], options=shadow)))
    assert [plan.outcome for plan in plans] == [ImportOutcome.KEPT]
    assert {*plans[0].kept} == {"target"}
    job.refresh_from_db()
    assert (job.target, job.enabled) == ("tests.app.tasks.fail", False)
    assert awaiting_handover(plans) == [job]
    handover = ComparisonOptions(source="celery", take_over=True)
    list(apply_entry_plans(compare_entries([entry()], options=handover)))
    job.refresh_from_db()
    assert (job.target, job.enabled) == ("tests.app.tasks.fail", True)


def test_import_of_an_unknown_target_as_shadow_is_refused() -> None:
    (plan,) = compare_entries([entry(target="gone")], options=ComparisonOptions(shadow=True))
    assert plan.outcome is ImportOutcome.REFUSED


# --- The report -----------------------------------------------------------------------------------


def shadow_with_runs(times: Iterable[datetime], **fields: Any) -> Job:
    job = make_job(
        name="a", target="shadow:tests.app.tasks.echo", **{"schedule": "* * * * *"} | fields
    )
    Job.objects.filter(pk=job.pk).update(created_at=START - timedelta(hours=1))
    Run.objects.bulk_create(
        Run(job=job, scheduled_at=time, due_at=time, claimed_at=time, trigger=Trigger.SCHEDULE)
        for time in times
    )
    return job


def report(
    source_runs: list[datetime], *, complete: bool = True, since: datetime = START
) -> ShadowComparison:
    (one,) = compare_shadows(
        [entry()], "default", SourceRuns({"row a": source_runs}, complete), since, NOW
    )
    return one


def test_matching_runs_are_reported_as_same() -> None:
    shadow_with_runs(at(n) for n in range(29))
    assert report([at(n, 0.3) for n in range(29)]) == ShadowComparison(
        Job.objects.get(), 29, late=timedelta(seconds=0.3), runs=29
    )


def test_run_only_in_the_source_is_reported() -> None:
    shadow_with_runs([at(0), at(10)])
    assert report([at(0, 1), at(5), at(10, 1)]).only_in_source == (
        Difference(at(5), DifferenceKind.NOT_DUE),
    )


def test_run_only_of_the_shadow_is_reported() -> None:
    shadow_with_runs([at(0), at(10), at(20)])
    assert report([at(0, 1), at(20, 1)]).only_in_shadow == (
        Difference(at(10), DifferenceKind.NOT_RUN),
    )


def test_late_run_in_the_source_is_reported_on_both_sides() -> None:
    shadow_with_runs([at(0), at(10), at(20)])
    found = report([at(0, 59), at(12, 5), at(20, 1)])
    assert found.only_in_source == (Difference(at(12, 5), DifferenceKind.LATE, at(10)),)
    assert found.only_in_shadow == (Difference(at(10), DifferenceKind.LATE, at(12, 5)),)
    assert (found.matched, found.late) == (2, timedelta(seconds=59))


def test_repeated_run_in_the_source_is_reported() -> None:
    shadow_with_runs([at(0), at(10), at(20)])
    found = report([at(0, 1), at(10, 1), at(10, 2), at(20, 1)])
    assert (found.only_in_source, found.only_in_shadow, found.matched) == (
        (Difference(at(10, 2), DifferenceKind.TWICE, at(10)),),
        (),
        3,
    )


def test_slightly_late_run_is_not_matched_with_the_next_occurrence() -> None:
    shadow_with_runs(at(n) for n in range(29))
    found = report([at(n, 59.5) for n in range(10)] + [at(n, 0.1) for n in range(10, 29)])
    assert (found.matched, found.differs) == (29, False)


@pytest.mark.parametrize("offset", [-0.4, 0, 0.4])
@pytest.mark.parametrize("first", [0, 1])
def test_runs_are_paired_with_the_same_occurrence(offset: float, first: int) -> None:
    """One side may have begun an occurrence earlier, and the clocks may differ by a moment."""
    shadow_with_runs(at(n) for n in range(29))
    found = report([at(n, offset) for n in range(1, 29)], since=at(first, -1))
    assert (found.matched, found.late) == (28, timedelta(seconds=max(offset, 0)))
    assert not found.only_in_source


def test_second_run_is_the_repeated_one_even_if_clocks_differ() -> None:
    shadow_with_runs([at(0), at(10)])
    found = report([at(0, 1), at(0, 3), at(0, 2), at(10, -0.5), at(10, 0.5)])
    assert [(each.at, each.other) for each in found.only_in_source] == [
        (at(0, 2), at(0)),
        (at(0, 3), at(0)),
        (at(10, 0.5), at(10)),
    ]
    assert {each.kind for each in found.only_in_source} == {DifferenceKind.TWICE}


def test_recent_run_of_the_shadow_is_not_reported_yet() -> None:
    shadow_with_runs([at(29, 30)])
    assert not report([]).differs


def test_only_the_latest_run_is_compared_if_history_is_incomplete() -> None:
    """Beat stores only the latest run, with a delay."""
    shadow_with_runs([at(0), at(10), at(20), at(27)])
    assert not report([at(20, 1)], complete=False).differs
    assert report([at(10, 1)], complete=False).only_in_shadow == (
        Difference(at(20), DifferenceKind.NOT_RUN),
    )
    assert report([at(15)], complete=False).only_in_source == (
        Difference(at(15), DifferenceKind.LATE, at(10)),
    )


def test_coverage_counts_compared_shadows_and_runs() -> None:
    """Only the latest run of the source is compared."""
    shadow_with_runs([at(0), at(10), at(20), at(27)])
    compared = report([at(20, 1)], complete=False)
    idle = replace(compared, matched=0, runs=0)
    silent = replace(compared, matched=0)
    assert Coverage.of([compared, silent, idle]) == Coverage(
        shadows=3, due=2, compared=1, runs=8, compared_runs=1
    )


@pytest.mark.parametrize(
    ("due", "compared", "percent", "suffices"),
    [(2, 1, 50, True), (3, 1, 50, False), (0, 0, 0, False), (5, 1, 0, True), (1, 1, 100, True)],
)
def test_coverage_suffices_from_the_given_percentage(
    due: int, compared: int, percent: int, suffices: bool
) -> None:
    assert Coverage(9, due, compared, 9, 9).suffices(percent) is suffices


def test_interval_matches_in_any_phase() -> None:
    shadow_with_runs([at(n) for n in range(0, 30, 5)], schedule="@every 5m")
    assert not report([at(n) for n in range(3, 29, 5)]).differs
    assert report([at(n) for n in range(3, 12, 5)]).only_in_shadow


def test_runs_before_the_shadow_was_created_are_ignored() -> None:
    job = shadow_with_runs([at(20)])
    Job.objects.filter(pk=job.pk).update(created_at=at(15))
    assert not report([at(5), at(10), at(15, 1), at(20, 1)]).differs


def test_report_omits_jobs_that_are_not_shadows() -> None:
    make_job(name="a", target="tests.app.tasks.echo")
    assert compare_shadows([entry()], "default", SourceRuns({}, True), START, NOW) == []


def test_shadow_that_a_person_paused_is_not_compared() -> None:
    job = shadow_with_runs([])
    control.pause(job, "ask Ann")
    found = report([at(0, 1), at(5), at(10)])
    assert (found.paused, found.differs, found.compared) == (True, False, 0)
    coverage = Coverage.of([found])
    assert (coverage.shadows, coverage.due, coverage.paused, coverage.shared) == (0, 0, 1, 0)


def test_shadow_that_a_person_paused_is_compared_until_its_last_run() -> None:
    job = shadow_with_runs([at(0), at(10), at(12), at(20)])
    source_runs = [at(0, 1), at(5), at(10, 1), at(20, 1), at(25)]
    control.pause(job, "ask Ann")
    found = report(source_runs)
    assert (found.paused, found.is_comparable, found.runs, found.matched) == (True, True, 4, 3)
    assert [each.at for each in found.only_in_source] == [at(5)]
    assert [each.at for each in found.only_in_shadow] == [at(12)]
    coverage = Coverage.of([found])
    assert (coverage.shadows, coverage.due, coverage.paused) == (1, 1, 0)
    latest_only = report(source_runs[-1:], complete=False)
    assert (latest_only.is_left_out, latest_only.differs) == (True, False)


@pytest.mark.parametrize(
    ("seconds", "matched"),
    [([1], 1), ([59], 1), ([-0.5], 1), ([-0.5, 59.5], 1), ([1, 2], 1), ([61], 0), ([], 0)],
    ids=["late", "very late", "early", "early twice", "twice", "too late", "none"],
)
def test_last_run_of_a_paused_shadow_matches_one_source_run(
    seconds: list[float], matched: int
) -> None:
    """The source runs the entry a moment after the shadow was due, and then the next occurrence."""
    job = shadow_with_runs([at(1)])
    control.pause(job, "ask Ann")
    found = report([at(1, offset) for offset in seconds])
    assert (found.matched, found.only_in_source) == (matched, ())


def test_last_run_of_a_paused_shadow_with_an_interval_matches_one_source_run() -> None:
    job = shadow_with_runs([at(10)], schedule="@every 5m")
    control.pause(job, "ask Ann")
    assert [report(times).matched for times in ([at(13), at(18)], [at(8), at(13)])] == [1, 1]


def test_paused_shadow_of_a_disabled_entry_is_compared_as_usual() -> None:
    job = shadow_with_runs([at(0)])
    control.pause(job, "as in the source")
    runs = SourceRuns({"row a": [at(0, 1), at(5)]}, True)
    (found,) = compare_shadows([entry(enabled=False)], "default", runs, START, NOW)
    assert (found.paused, found.matched) == (False, 1)
    assert [each.at for each in found.only_in_source] == [at(5)]


def test_report_that_compares_nothing_names_all_reasons() -> None:
    paused = ShadowComparison(Job(), 0, paused=True)
    shared = ShadowComparison(Job(), 0, shared_task="tests.app.tasks.echo")
    both = replace(shared, paused=True)
    coverage = Coverage.of([paused, shared, both])
    assert (coverage.shadows, coverage.paused, coverage.shared) == (0, 1, 2)
    text = nothing_comparable_text(coverage)
    assert "1 shadow is paused here" in text
    assert "2 shadows share a task" in text


def test_one_off_that_has_run_is_compared_although_it_is_finished() -> None:
    job = shadow_with_runs([at(0), at(10)])
    Job.objects.filter(pk=job.pk).update(enabled=False, pause_reason=EXHAUSTED)
    assert report([at(0, 1), at(10, 1)]).matched == 2


def test_report_names_the_schedule_that_was_edited_here() -> None:
    job = shadow_with_runs([at(0), at(10)])
    assert not report([at(0, 1), at(5), at(10, 1)]).edited
    job.refresh_from_db()
    job.schedule = "*/10 * * * *"
    control.save(job)
    assert report([at(0, 1), at(5), at(10, 1)]).edited == {
        "schedule": ("*/10 * * * *", "* * * * *")
    }
    assert report([at(0, 1), at(10, 1)]).edited, "a later run may differ"


def test_report_omits_entries_that_were_not_imported() -> None:
    shadow_with_runs([at(5)])
    one_off = SourceEntry("row a", "a", omitted="a one-time row that has run")
    assert compare_shadows([one_off], "default", SourceRuns({}, False), START, NOW) == []


# --- History that other schedulers keep -----------------------------------------------------------


@pytest.fixture(scope="module")
def django_q2(install: Install) -> None:
    install("django_q", Q_CLUSTER={"timeout": 60, "retry": 90, "orm": "default"})


def test_report_compares_shadows_with_runs_of_django_q2(django_q2: None) -> None:
    from django_q.models import Schedule, Task

    ahead = datetime.now(UTC) + timedelta(days=1)
    Schedule.objects.create(
        name="a", func="tests.app.tasks.echo", schedule_type="D", next_run=ahead
    )
    assert call("import", "django-q2", "--apply", "--shadow").code == 0
    job = Job.objects.get()
    long_ago = datetime.now(UTC) - timedelta(days=2)
    Job.objects.update(created_at=long_ago)
    nothing = call("import", "django-q2", "--report", "--json")
    assert (nothing.code, nothing.json["coverage"]["compared"]) == (2, 0)
    started = datetime.now(UTC) - timedelta(minutes=30)
    Task.objects.create(id="1", name="x", func="f", group="a", started=started, stopped=started)
    alone = call("import", "django-q2", "--report")
    assert (alone.code, alone.err.startswith("1 of 1 ")) == (1, True)
    assert f"only in source a {time_text(started)}: the shadow job wasn't due" in alone.out
    scheduled = started.replace(microsecond=0)
    Run.objects.create(job=job, scheduled_at=scheduled, due_at=scheduled, claimed_at=scheduled)
    (beside_it,) = call("import", "django-q2", "--report", "--json").json["jobs"]
    assert (beside_it["matched"], beside_it["only_in_source"], beside_it["only_in_shadow"]) == (
        1,
        [],
        [],
    )
    again = started + timedelta(seconds=10)
    Task.objects.create(id="2", name="y", func="f", group="a", started=again, stopped=again)
    twice = call("import", "django-q2", "--report")
    assert twice.code == 1
    assert (
        f"only in source a {time_text(again)}: second source run for {time_text(scheduled)}"
        in twice.out
    )
    assert "delay" in twice.out
    (beside_it,) = call("import", "django-q2", "--report", "--json").json["jobs"]
    assert beside_it["only_in_source"] == [
        {"at": iso(again), "why": DifferenceKind.TWICE, "other": iso(scheduled)}
    ]
    job.refresh_from_db()
    assert "for the same run" in twice.out.splitlines()[-1]
    assert "(a)." in twice.out
    job.schedule = "0 0 * * *"
    control.save(job)
    edited = call("import", "django-q2", "--report").out
    assert "! a may differ because of its schedule: 0 0 * * * here, " in edited
    assert "Maximum delay" not in edited, "the edit may be the cause of the delay"
    control.pause(job, "ask Ann")
    Run.objects.all().delete()
    paused = call("import", "django-q2", "--report")
    assert "! 1 shadow isn't compared: paused here: a" in paused.out
    assert (paused.code, "1 shadow is paused here" in paused.err) == (2, True)
    control.delete(job)
    assert "--shadow --apply" in call("import", "django-q2", "--report").err


@pytest.mark.parametrize("why", DifferenceKind)
def test_reasons_of_differences_are_documented(why: DifferenceKind) -> None:
    document = (Path(__file__).resolve().parents[3] / "docs/how-to/migrate.md").read_text()
    other = at(0) if why in (DifferenceKind.LATE, DifferenceKind.TWICE) else None
    message = difference_reason(Difference(at(2), why, other))
    assert message.replace(time_text(at(0)), "...").replace("120.0 s", "...") in document


def test_report_of_some_entries_is_refused() -> None:
    refused = call("import", "django-q2", "--report", "--only", "report")
    assert (refused.code, "--only can't be combined with --report" in refused.err) == (2, True)


def test_report_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "crontab").write_text("@daily x\n")
    error = call("import", str(tmp_path / "crontab"), "--report").err
    assert "--report needs a scheduler" in error
    assert "manage.py dcron history JOB" in error
