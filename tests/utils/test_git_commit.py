"""Git's files name the commit that is checked out, in each layout that Git writes."""

from pathlib import Path

import pytest

from django_dcron.utils.git_commit import checked_out_commit

COMMIT = "5f1c2ab9d1e04c7f9a3b6d28e5c0a71f4b9d2e63"
OTHER = "0" * 40


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def detached(root: Path) -> None:
    write(root / ".git/HEAD", COMMIT)


def branch(root: Path) -> None:
    write(root / ".git/HEAD", "ref: refs/heads/topic/a")
    write(root / ".git/refs/heads/topic/a", COMMIT)
    write(root / ".git/packed-refs", f"{OTHER} refs/heads/topic/a")  # an older value


def packed_branch(root: Path) -> None:
    write(root / ".git/HEAD", "ref: refs/heads/main")
    lines = (f"{OTHER} refs/heads/mai", f"{COMMIT} refs/heads/main", f"^{OTHER}")
    write(root / ".git/packed-refs", "\n".join(("# pack-refs with: peeled", *lines)))


def worktree(root: Path) -> None:
    shared = root.parent / "shared/.git"
    write(root / ".git", f"gitdir: {shared}/worktrees/w")
    write(shared / "worktrees/w/HEAD", "ref: refs/heads/w")
    write(shared / "worktrees/w/commondir", "../..")
    write(shared / "refs/heads/w", COMMIT)


def submodule(root: Path) -> None:
    write(root / ".git", "gitdir: ../modules/site")
    write(root.parent / "modules/site/HEAD", COMMIT)


@pytest.mark.parametrize("layout", [detached, branch, packed_branch, worktree, submodule])
def test_commit_is_that_of_the_checkout(layout: object, tmp_path: Path) -> None:
    root = tmp_path / "project"
    layout(root)  # type: ignore[operator]
    (root / "site/settings").mkdir(parents=True)
    assert checked_out_commit(root / "site/settings") == COMMIT[:12]


def no_commit_yet(root: Path) -> None:
    write(root / ".git/HEAD", "ref: refs/heads/main")


def head_missing(root: Path) -> None:
    write(root / ".git/config", "")


def not_text(root: Path) -> None:
    write(root / ".git/config", "")
    (root / ".git/HEAD").write_bytes(b"\xff\xfe")


def null_in_path(root: Path) -> None:
    write(root / ".git", "gitdir: a\0b")


@pytest.mark.parametrize("layout", [no_commit_yet, head_missing, not_text, null_in_path])
def test_no_commit_can_be_read(layout: object, tmp_path: Path) -> None:
    layout(tmp_path)  # type: ignore[operator]
    assert checked_out_commit(tmp_path) == ""
