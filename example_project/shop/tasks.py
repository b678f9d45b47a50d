"""Jobs that are Celery tasks.

`@cron` above `@shared_task` declares a job: name, schedule and policies. `runcron` stores the job
when it starts, and from then on the admin can change it. A task without `@cron` can still be the
target of a job that is created in the admin.
"""

import csv
import logging
import time
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from urllib.error import URLError

from celery import shared_task
from django.conf import settings
from django.db import transaction
from django.db.models import Max, Sum
from django.utils import timezone

from django_dcron import PermanentFailure, cron, current_run
from shop import marketplace
from shop.models import Order, OrderQuerySet, Product

logger = logging.getLogger(__name__)


@cron(
    "*/4 * * * * *",
    name="import-orders",
    description="Fetches new orders from the marketplace, which is down now and then.",
    timeout=timedelta(seconds=20),
    max_attempts=5,
    retry_backoff=timedelta(seconds=0.5),  # then 1 s, 2 s, 4 s
    retry_on=(URLError, TimeoutError),  # a 503 is a URLError; other errors fail at once
)
@shared_task
def import_orders() -> dict[str, int]:
    """Import new orders. An existing order isn't changed, so a retry is safe."""
    newest = Order.objects.aggregate(newest=Max("number"))["newest"] or 0
    placed = marketplace.orders_after(newest)
    products = Product.objects.in_bulk([order["sku"] for order in placed], field_name="sku")
    Order.objects.bulk_create(
        [
            Order(
                number=order["number"],
                product=products[order["sku"]],
                quantity=order["quantity"],
                unit_price=products[order["sku"]].selling_price,
                customer=order["customer"],
                placed_at=datetime.fromisoformat(order["placed_at"]),
            )
            for order in placed
        ],
        ignore_conflicts=True,
    )
    logger.info("Imported %d orders.", len(placed))
    return {"imported": len(placed)}


@cron(
    "*/5 * * * *",
    name="sales-report",
    description="Writes the orders since the previous report to a CSV file.",
    timeout=timedelta(minutes=1),
    max_attempts=3,
)
@shared_task
def sales_report() -> dict[str, str | int]:
    """Write a report of the orders since the previous one.

    Each order is marked with its report. Even if runs are late, fail or are skipped, each order is
    reported exactly once. A retry has the same scheduled time, so it writes the same report.
    """
    until = current_run().scheduled_at  # the current time in a shell or a test
    path = settings.REPORTS_DIR / f"sales-{timezone.localtime(until):%Y%m%d-%H%M%S}.csv"
    with transaction.atomic():  # if writing the report fails, no order is marked
        Order.objects.filter(reported_at=None, imported_at__lt=until).update(reported_at=until)
        orders = Order.objects.filter(reported_at=until)
        rows = write_report(path, orders)
    logger.info("Wrote %s: %d orders, %.2f in sales.", path.name, rows, orders.revenue())
    return {"file": path.name, "orders": rows}


def write_report(path: Path, orders: OrderQuerySet) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["number", "placed at", "customer", "SKU", "product", "quantity", "unit price"]
        )
        rows = orders.order_by("number").values_list(
            "number",
            "placed_at",
            "customer",
            "product__sku",
            "product__name",
            "quantity",
            "unit_price",
        )
        table.writerows(rows)
    unfinished.replace(path)  # so that nobody reads a partial report
    return len(rows)


@cron(
    "*/2 * * * *",
    name="import-prices",
    description=(
        "Imports the supplier's price list. The list hasn't arrived yet, so the job fails and "
        "shows what a failure looks like."
    ),
    timeout=timedelta(minutes=1),
    max_attempts=3,
)
@shared_task
def import_prices() -> dict[str, int]:
    """Import a price list with one line per product (SKU, price): all prices, or none."""
    path = settings.INCOMING_DIR / "prices.csv"
    try:
        with path.open(newline="") as file:
            prices = [(sku, Decimal(price)) for sku, price in csv.reader(file)]
    except FileNotFoundError as missing:  # an immediate retry wouldn't help
        raise PermanentFailure(
            f"The supplier's price list is missing: no {path.name} in {path.parent.name}"
        ) from missing
    with transaction.atomic():
        found = sum(Product.objects.filter(sku=sku).update(price=price) for sku, price in prices)
    logger.info("Imported %d of %d prices.", found, len(prices))
    return {"prices": found}


@cron(
    "@every 12s",
    name="stocktake",
    description="Counts the stock, product by product.",
    timeout=timedelta(seconds=30),
    overlap_policy="skip",  # the default: two counts must not run at once
)
@shared_task
def stocktake(pause: float = 0.25) -> dict[str, int]:
    """Count the stock, with a pause after each product to leave the database to the customers."""
    run = current_run()
    products = Product.objects.all()
    sold_out = 0
    for done, product in enumerate(products, start=1):
        sold = product.orders.aggregate(sold=Sum("quantity"))["sold"] or 0
        product.on_hand = product.delivered - sold
        product.counted_at = timezone.now()
        product.save(update_fields=["on_hand", "counted_at"])
        sold_out += product.on_hand <= 0
        run.progress(done, len(products), product.name)  # shown in the admin
        time.sleep(pause)
    logger.info("Counted %d products, %d sold out.", len(products), sold_out)
    return {"counted": len(products), "sold_out": sold_out}


@shared_task
def start_sale(category: str, percent: int) -> dict[str, int]:
    """Start a sale.

    It has no `@cron`: a one-time job (`@at ...`) in the admin decides when it starts.
    """
    products = Product.objects.filter(category=category).update(discount=percent)
    logger.info("%d %% off %s, %d products.", percent, category, products)
    return {"products": products}
