from django.db import models


class Witness(models.Model):
    """One row for each real start of a target. Two rows for one attempt break the guarantee."""

    run_id = models.CharField(max_length=64)
    job = models.CharField(max_length=255)
    scheduled_at = models.DateTimeField()
    attempt = models.PositiveIntegerField()
    worker_pid = models.PositiveIntegerField()
    number = models.PositiveIntegerField(default=0)
    """An argument of the job, as the code received it."""
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return (
            f"{self.job} at {self.scheduled_at:%H:%M:%S}, attempt {self.attempt}, by "
            f"{self.worker_pid}"
        )
