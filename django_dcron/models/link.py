"""A link of a chain: ``job`` starts after a run of ``after`` has ended with the outcome ``on``.

Only ``jobs/chains.py`` writes links, from ``Job.after``, in the transaction that saves the job. The
end of a run reads them.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_dcron.models.job import Job
from django_dcron.policies.chains import ChainCondition

ON_LABELS = [
    (ChainCondition.SUCCEEDED.value, _("Succeeded")),
    (ChainCondition.FAILED.value, _("Failed")),
    (ChainCondition.ENDED.value, _("Ended")),
]


class Link(models.Model):
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="links", db_index=False)
    after = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="followers")
    on = models.CharField(max_length=9, choices=ON_LABELS)

    class Meta:
        verbose_name = _("link")
        verbose_name_plural = _("links")
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=("job", "after"), name="dcron_link_once"),)

    def __str__(self) -> str:
        return f"{self.job_id} after {self.after_id} {self.on}"
