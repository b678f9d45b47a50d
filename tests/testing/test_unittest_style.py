"""Use from ``django.test.TestCase``: a test's rows and its time end with its transaction."""

import os
import subprocess
import sys
from datetime import timedelta

from django.test import SimpleTestCase, TestCase, TransactionTestCase

from django_dcron import control
from django_dcron.db import clock
from django_dcron.models import Job, Run
from django_dcron.testing import assert_runs_at, run_due, set_clock
from tests.docs.test_documents import ROOT
from tests.factories import make_job
from tests.testing.conftest import NINE

HOUR = timedelta(hours=1)


class InATransaction(TestCase):
    def setUp(self) -> None:
        self.clock = self.enterContext(set_clock(NINE))
        assert not Job.objects.exists(), "the rows of other tests are gone"

    def run_one(self) -> None:
        job = make_job(schedule="0 * * * *")
        (run,) = run_due(at=NINE + HOUR)
        assert (run.job, run.state) == (job, "succeeded")
        assert self.clock.now() == NINE + HOUR

    def test_run_is_executed(self) -> None:
        self.run_one()

    def test_rows_of_the_previous_test_are_rolled_back(self) -> None:
        self.run_one()

    def test_triggered_run_is_executed(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            run = control.trigger(make_job(schedule="@yearly"))
        assert run_due() == [run]


class OutsideOfATransaction(TransactionTestCase):
    @set_clock(NINE)
    def test_triggered_run_is_executed(self) -> None:
        run = control.trigger(make_job(schedule="@yearly"))
        assert run_due() == [run]
        assert Run.objects.get().started_at == NINE


class WithoutADatabase(SimpleTestCase):
    def test_assert_runs_at_needs_no_database(self) -> None:
        assert clock.fixed_at is None
        assert_runs_at("@daily", [NINE + 15 * HOUR], after=NINE)


def test_importing_the_package_imports_neither_django_nor_pytest() -> None:
    program = (
        "import sys, django_dcron.testing; assert not {'django', 'pytest', 'celery'} & "
        "set(sys.modules)"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
