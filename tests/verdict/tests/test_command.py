"""The command that judges histories, their JSON, and the witness log."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.verdict.__main__ import main
from tests.verdict.history import History
from tests.verdict.judgement import judge
from tests.verdict.tests.good import SECOND, T, drop, good_history
from tests.verdict.witness import Anchor, read_log, witnessed

PUBLISHED = sorted(Path("docs/contributing/histories").glob("*.json.gz"))


def test_json_keeps_everything() -> None:
    history = good_history()
    assert vars(History.from_json(history.to_json())) == vars(history)


@pytest.mark.parametrize("text", ["{}", '{"format": 2}', '{"format": 1, "odd": 1}'])
def test_json_of_another_format_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"format|odd"):
        History.from_json(text)


def test_published_histories_have_the_documented_totals_and_no_findings() -> None:
    totals = [judge(History.read(path)) for path in PUBLISHED]
    assert not [finding for verdict in totals for finding in verdict.findings]
    text = " ".join(Path("docs/contributing/verdict.md").read_text().split())
    for number, name in (
        (len(PUBLISHED), "scenarios"),
        (sum(verdict.totals.occurrences for verdict in totals), "occurrences"),
        (sum(verdict.totals.starts for verdict in totals), "starts"),
    ):
        assert f"{number:,} {name}" in text


def test_command_prints_totals_and_fails_on_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good_history().write(good)
    drop(good_history(), "runs", 0).write(bad)
    assert main([str(good)]) == 0
    assert "occurrences 18, runs 18, attempts 18, starts 18, lost 0" in capsys.readouterr().out
    assert main([str(good), str(bad)]) == 1
    assert "lost 1" in capsys.readouterr().out


def test_witness_log_has_each_start_and_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with witnessed(log, run="r", attempt=1, job="j", scheduled_at=T):
        (running,) = read_log(log, Anchor(0, T))
        assert running.ended_at is None
    with (
        pytest.raises(ZeroDivisionError),
        witnessed(log, run="r", attempt=2, job="j", scheduled_at=T),
    ):
        raise ZeroDivisionError
    first, second = read_log(log, Anchor(0, T))
    assert (first.run, first.attempt, first.job, first.scheduled_at) == ("r", 1, "j", T)
    assert second.attempt == 2
    assert first.ended_at is not None
    assert second.ended_at is not None
    assert first.began_at <= first.ended_at <= second.began_at <= second.ended_at
    (moved, _) = read_log(log, Anchor(0, T + SECOND))
    assert moved.began_at - first.began_at == timedelta(seconds=1)


def test_damaged_witness_log_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(json.dumps({"ended": 1.0, "run": "r", "attempt": 1, "process": "1"}) + "\n")
    with pytest.raises(ValueError, match="without a start"):
        read_log(log, Anchor(0, T))
    log.write_text("{")
    with pytest.raises(ValueError, match="line"):
        read_log(log, Anchor(0, T))
