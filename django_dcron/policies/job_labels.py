"""Labels of jobs: the name, or ``namespace/name`` outside the default namespace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

DEFAULT_NAMESPACE = "default"


class JobKey(NamedTuple):
    namespace: str
    name: str


def split_label(label: str) -> JobKey:
    """Split a label: ``name`` or ``namespace/name``."""
    first, slash, rest = label.partition("/")
    return JobKey(first, rest) if slash else JobKey(DEFAULT_NAMESPACE, first)


def label_of(namespace: str, name: str) -> str:
    """Join namespace and name, the reverse of ``split_label``."""
    return name if namespace == DEFAULT_NAMESPACE else f"{namespace}/{name}"


def same_job(labels: Iterable[str]) -> tuple[str, str] | None:
    """Return the first two labels that name the same job, or None."""
    label_by_key: dict[JobKey, str] = {}
    for label in labels:
        first = label_by_key.setdefault(split_label(label), label)
        if first != label:
            return first, label
    return None
