"""A link of a chain: ``job`` starts after a run of ``after`` has ended as ``on`` says.

Written from ``Job.after``, in the transaction that saves the job (``chaining.py``), by nobody else; read by whoever ends a run.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.domain.chains import On
from django_dcron.models.job import Job

ON_LABELS = [
    (On.SUCCEEDED.value, _("succeeded")),
    (On.FAILED.value, _("failed")),
    (On.ENDED.value, _("ended")),
]


class Link(models.Model):
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="links", db_index=False)
    after = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="followers")
    on = models.CharField(max_length=9, choices=ON_LABELS)

    class Meta:
        verbose_name = _("link")
        verbose_name_plural = _("links")
        constraints = (models.UniqueConstraint(fields=("job", "after"), name="dcron_link_once"),)

    def __str__(self) -> str:
        return f"{self.job_id} after {self.after_id} {self.on}"
