"""Classes of a project that uses django-cron."""

from celery import shared_task
from django_cron import CronJobBase, Schedule


class Base(CronJobBase):
    def do(self) -> None:
        pass


class Nightly(Base):
    code = "shop.nightly"
    schedule = Schedule(run_at_times=["3:30", "15:30"], retry_after_failure_mins=60)


@shared_task(name="tests.contrib.importers.cron_classes.Nightly")
def nightly() -> None:
    return Nightly().do()


class Unregistered(CronJobBase):
    code = "shop.unregistered"
    schedule = Schedule(run_every_mins=30, retry_after_failure_mins=5)
    ALLOW_PARALLEL_RUNS = True

    def do(self) -> str:
        return str(self.get_prev_success_cron())


class Mixed(Base):
    code = "shop.mixed"
    schedule = Schedule(run_every_mins=90, run_at_times=["6:00", "12:24", "18:00", "7:24"])


class WithoutCode(Base):
    schedule = Schedule(run_every_mins=90)


class Never(Base):
    code = "shop.never"
    schedule = Schedule(run_monthly_on_days=[1])


class NoDay(Base):
    code = "shop.no_day"
    schedule = Schedule(run_at_times=["1:00"], run_on_days=[])


class OneDay(Base):
    code = "shop.one_day"
    schedule = Schedule(run_at_times=["1:00"], run_monthly_on_days=1)


class Friday13th(Base):
    code = "shop.friday"
    schedule = Schedule(run_at_times=["1:00"], run_monthly_on_days=[13], run_on_days=[4])


class Odd(Base):
    code = "shop.odd"
    schedule = Schedule(run_every_mins=90, run_on_days=[4])


class Zero(Base):
    code = "shop.zero"
    schedule = Schedule(run_every_mins=0, run_on_days=[4])


class NoTime(Base):
    code = "shop.no_time"
    schedule = Schedule(run_at_times=["25:00"])


class OfAFork(Base):
    code = "shop.fork"
    schedule = Schedule(run_at_times=["1:00"])
    vars(schedule)["run_between_times"] = (("1:00", "2:00"),)


class WithoutFunction(CronJobBase):
    code = "shop.without_function"
    schedule = Schedule(run_at_times=["1:00"])
