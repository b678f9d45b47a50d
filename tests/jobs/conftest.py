"""Read the rows of a job again."""

from django_dcron.models import Cursor, Job


def reread(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def cursor_of(job: Job) -> Cursor:
    return Cursor.objects.get(pk=job.pk)
