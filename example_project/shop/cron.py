"""Jobs that are plain functions. django-dcron imports the `cron.py` of every installed app."""

from datetime import timedelta

from django.utils import timezone

from django_dcron import cron, current_run
from shop.models import Order, Pulse


@cron(
    "*/2 * * * * *",
    name="shop-pulse",
    timeout=timedelta(seconds=10),
    description="Records the orders of the last minute and the day's revenue.",
)
def shop_pulse() -> dict[str, int]:
    """Record the orders of the last minute and the day's revenue.

    The schedule has six fields, and the first is seconds. The row stores the scheduled time,
    however late the run is.
    """
    at = current_run().scheduled_at
    orders = Order.objects.filter(
        imported_at__gt=at - timedelta(minutes=1), imported_at__lte=at
    ).count()
    today = Order.objects.filter(placed_at__date=timezone.localdate())
    Pulse.objects.update_or_create(at=at, defaults={"orders": orders, "revenue": today.revenue()})
    return {"orders": orders}
