"""Labels of jobs: with and without the default namespace."""

import pytest

from django_dcron.policies.job_labels import label_of, same_job, split_label


@pytest.mark.parametrize("label", ["nightly", "shop/nightly", "a b.c@d:e-f"])
def test_split_label_and_label_of_are_inverse(label: str) -> None:
    assert label_of(*split_label(label)) == label


@pytest.mark.parametrize(
    ("labels", "same"),
    [
        ([], None),
        (["a", "b", "shop/a"], None),
        (["b", "a", "default/a"], ("a", "default/a")),
        (["default/a", "shop/a", "a"], ("default/a", "a")),
    ],
)
def test_labels_with_and_without_default_namespace_name_the_same_job(
    labels: list[str], same: tuple[str, str] | None
) -> None:
    assert same_job(labels) == same
