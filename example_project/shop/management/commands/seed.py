"""Fill an empty database: articles, last week's orders, old sessions, an admin user, two jobs."""

import random
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management.base import BaseCommand
from django.utils import timezone
from django.utils.crypto import get_random_string

from django_dcron import control
from django_dcron.models import Job
from shop.catalog import CATALOG
from shop.models import Order, Product

ORDERS = 200
EXPIRED_SESSIONS = 150
CUSTOMERS = ["I. Petrov", "J. Dubois", "K. Andersen", "L. Fischer", "M. Costa", "N. Haddad"]


class Command(BaseCommand):
    help = __doc__

    def handle(self, *args: Any, **options: Any) -> None:
        if Product.objects.exists():
            self.stdout.write("The shop is open already; nothing to seed.")
            return
        products = Product.objects.bulk_create(
            [Product(**article._asdict()) for article in CATALOG]
        )
        create_last_weeks_orders(products)
        create_expired_sessions()
        User.objects.create_superuser("admin", password="admin")
        make_jobs_as_in_the_admin()
        self.stdout.write(
            f"Seeded {len(products)} products, {ORDERS} orders of last week, "
            f"{EXPIRED_SESSIONS} old sessions, 2 jobs."
        )


def create_last_weeks_orders(products: list[Product]) -> None:
    generator = random.Random("last week")
    week_ago = timezone.now() - timedelta(days=7)
    orders = [
        Order(
            number=1001 - ORDERS + position,
            product=(product := generator.choice(products)),
            quantity=generator.choice([1, 1, 2, 3]),
            unit_price=product.price,
            customer=generator.choice(CUSTOMERS),
            placed_at=week_ago + timedelta(days=7) * position / ORDERS,
        )
        for position in range(ORDERS)
    ]
    Order.objects.bulk_create(orders)
    for order in orders:
        order.imported_at = order.placed_at  # auto_now_add would set the current time
        order.reported_at = order.placed_at  # reported in one of last week's reports
    Order.objects.bulk_update(orders, ["imported_at", "reported_at"])


def create_expired_sessions() -> None:
    """Create expired sessions for `clearsessions` to delete."""
    expired = timezone.now() - timedelta(days=1)
    sessions = [
        Session(session_key=get_random_string(32), session_data="", expire_date=expired)
        for _ in range(EXPIRED_SESSIONS)
    ]
    Session.objects.bulk_create(sessions)


def make_jobs_as_in_the_admin() -> None:
    """Create jobs without code, as in the admin. `control.save` validates them like the admin."""
    control.save(
        Job(
            name="nightly-clearsessions",
            description="Deletes expired sessions: Django's own management command.",
            target="command:clearsessions",
            schedule="30 3 * * *",
            timezone="Europe/Berlin",
            timeout=timedelta(minutes=10),
            max_attempts=3,
        )
    )
    control.save(
        Job(
            name="tea-sale",
            description="A sale that starts once, at the moment the owner has chosen.",
            target="shop.tasks.start_sale",
            kwargs={"category": "tea", "percent": 20},
            schedule=f"@at {timezone.now() + timedelta(seconds=15):%Y-%m-%dT%H:%M:%S}Z",
        )
    )
