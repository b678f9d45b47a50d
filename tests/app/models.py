from django.db import models


class Witness(models.Model):
    """Saw a target start for real: one row for each start, so two rows for one attempt are a broken promise."""

    run_id = models.CharField(max_length=64)
    job = models.CharField(max_length=255)
    scheduled_at = models.DateTimeField()
    attempt = models.PositiveIntegerField()
    worker_pid = models.PositiveIntegerField()
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.job} at {self.scheduled_at:%H:%M:%S}, attempt {self.attempt}, by {self.worker_pid}"
