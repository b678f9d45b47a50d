"""Check the model of a run's life with spin, and check that it detects each missing guard.

python -m tests.model.check     (needs spin and a C compiler: apt install spin gcc)
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = Path(__file__).with_name("run.pml").read_text()

MUTANTS = {
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


def main() -> int:
    failed = False
    found = errors_in(MODEL)
    print(f"the model: {found or 'no error'}")
    failed |= bool(found)
    for name, (guard, mutant) in MUTANTS.items():
        assert MODEL.count(guard) == 1, f"the model no longer has: {guard}"
        found = errors_in(MODEL.replace(guard, mutant))
        print(f"if {name}: {found or 'NOT DETECTED'}")
        failed |= not found
    return int(failed)


def errors_in(model: str) -> str:
    """Return spin's error, if any.

    Errors are violated assertions (a second start, a transition from a final state) and runs that
    never end.
    """
    safety = _verify(model, ["-DNOCLAIM", "-DSAFETY"], [])
    return safety or _verify(model, [], ["-a", "-f"])


def _verify(model: str, compile_options: list[str], options: list[str]) -> str:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "run.pml").write_text(model)
        _run(directory, "spin", "-a", "run.pml")
        _run(directory, "cc", "-O2", "-w", *compile_options, "-o", "pan", "pan.c")
        report = _run(directory, "./pan", *options, "-m1000000")
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
