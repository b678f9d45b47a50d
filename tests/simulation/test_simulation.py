"""The simulator itself: a seed decides the whole history."""

import subprocess
import sys

HOURS = "1"


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the simulator in its own process, because it replaces parts of the package."""
    command = [sys.executable, "-m", "tests.simulation", "--each", HOURS, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def digest_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the hash of the history, if the simulator has found nothing."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.partition("history ")[2].split()[0].rstrip(",")


def test_replay_of_a_seed_prints_the_same_history() -> None:
    simulated = simulate("--seed", "1", "--hours", HOURS)
    replayed = simulate("--replay", "1")
    assert digest_of(replayed) == digest_of(simulated)
    assert "queued -> running" in replayed.stdout


def test_different_seeds_have_different_histories() -> None:
    both = [simulate("--seed", seed, "--hours", HOURS) for seed in ("2", "3")]
    assert len(set(map(digest_of, both))) == 2


def test_broken_guard_is_found_and_its_replay_fails() -> None:
    name = "attempts_stay_open"
    found = simulate("--broken", name, "--hours", HOURS)
    assert f"| `{name}` | 1 | 1 | attempts" in found.stdout, found.stdout + found.stderr
    replayed = simulate("--replay", "1", "--broken", name)
    assert replayed.returncode == 1
    assert "attempts: job-" in replayed.stdout
