"""Check the models with spin, check that they detect each missing guard, and compare the
transitions that they make with the table of ``tests.model.transitions``.

python -m tests.model.check     (needs spin and a C compiler: apt install spin gcc)
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.model.transitions import ALLOWED, STATES, Transition

RUN = Path(__file__).with_name("run.pml").read_text()
CLUSTER = Path(__file__).with_name("cluster.pml").read_text()

RUN_MUTANTS = {
    "the start doesn't check the state": (
        ":: (state == pending || state == queued) && attempt == got ->",
        ":: attempt == got && !final ->",
    ),
    "the start doesn't check the attempt": (
        "(state == pending || state == queued) && attempt == got ->",
        "(state == pending || state == queued) ->",
    ),
    "the mark doesn't check the state": (
        ":: state == pending && attempt == delivered -> move(queued)",
        ":: attempt == delivered && !final -> move(queued)",
    ),
    "the finish doesn't check the attempt": (
        ":: state == running && attempt == alive[me] -> move(succeeded)",
        ":: state == running || final -> move(succeeded)",
    ),
    "no node adopts the run": (
        ":: atomic { state == pending && agenda == 0 && delivered == 0 -> agenda = attempt }",
        "",
    ),
    "no node redelivers the run": (
        ":: atomic { state == queued && messages[attempt] == 0 -> move(pending) }",
        "",
    ),
    "no node rescues the run": (
        (
            ":: atomic { state == running && alive[0] != attempt && alive[1] != attempt -> "
            "retry_or_fail() }"
        ),
        "",
    ),
}

CLUSTER_MUTANTS = {
    "a run starts without the slot": (
        "(!of_job(r) || slot == NONE || slot == r) -> begin(r)",
        "(!of_job(r) || slot == NONE || slot == r || policy == QUEUE_ONE) -> begin(r)",
    ),
    "an ended run keeps the slot": (":: slot == r -> slot = NONE; wake_next()", ":: slot == r"),
    "nobody wakes the waiting run": (
        ":: slot == NONE && state[0] == WAITING -> move(0, PENDING, 0); slot = 0; "
        "message[0] = false",
        ":: slot == NONE && state[0] == WAITING",
    ),
    "backfilled runs aren't released": (
        "any_leads && state[BACKFILLED] == WAITING && slot == NONE -> move(BACKFILLED, PENDING, 0)",
        "false",
    ),
    "a cancelled run has no follower": (
        "target == FAILED || (target == CANCELLED && started[0] != 0)",
        "target == FAILED",
    ),
    "a dead worker's attempt isn't rescued": (
        ":: atomic { any_leads && state[r] == RUNNING && executing[r] != attempt[r] -> "
        "retry_or_fail(r) } \\",
        "\\",
    ),
    "nobody takes a free lease": (":: d_step { !any_leads -> leads[0] = true }", ""),
}


def main() -> int:
    failed = False
    for title, model, mutants in (
        ("the life of a run", RUN, RUN_MUTANTS),
        ("runs that meet", CLUSTER, CLUSTER_MUTANTS),
    ):
        found = errors_in(model)
        print(f"{title}: {found or 'no error'}", flush=True)
        failed |= bool(found)
        for name, (guard, mutant) in mutants.items():
            assert model.count(guard) == 1, f"the model no longer has: {guard}"
            found = errors_in(model.replace(guard, mutant))
            print(f"if {name}: {found or 'NOT DETECTED'}", flush=True)
            failed |= not found
    return int(failed or not _has_the_transitions_of(CLUSTER))


def _has_the_transitions_of(model: str) -> bool:
    report = _pan_report(model, ["-DNOCLAIM", "-DSAFETY"], [])
    numbers = re.findall(r"^transition (\d+) (\d+) (\d+)$", report, re.MULTILINE)
    made = {Transition(STATES[int(old)], STATES[int(new)], int(more)) for old, new, more in numbers}
    for difference in sorted(made ^ ALLOWED):
        print(f"only in the {'model' if difference in made else 'table'}: {difference}")
    print(f"{len(made)} transitions, {len(ALLOWED)} in the table")
    return made == ALLOWED


def errors_in(model: str) -> str:
    """Return spin's error, if any.

    Errors are violated assertions (a second start, a transition from a final state) and runs that
    never end.
    """
    safety = _first_error(model, ["-DNOCLAIM", "-DSAFETY"], [])
    return safety or _first_error(model, [], ["-a", "-f"])


def _pan_report(model: str, compile_options: list[str], options: list[str]) -> str:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "run.pml").write_text(model)
        _run(directory, "spin", "-a", "run.pml")
        _run(directory, "cc", "-O0", "-w", *compile_options, "-o", "pan", "pan.c")
        return _run(directory, "./pan", *options, "-m1000000")


def _first_error(model: str, compile_options: list[str], options: list[str]) -> str:
    report = _pan_report(model, compile_options, options)
    errors = re.search(r"errors: (\d+)", report)
    if errors is None or "max search depth too small" in report:
        raise SystemExit(f"The search is incomplete:\n{report}")
    if errors[1] == "0":
        return ""
    violated = re.search(r"pan:1: (.*?)(?: \(at depth|$)", report, re.MULTILINE)
    return violated[1] if violated else "an error"


def _run(directory: str, *command: str) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
