"""Jobs that are plain functions. django-dcron imports the `cron.py` of every installed app by itself."""

from datetime import timedelta

from django.utils import timezone

from django_dcron import cron, current_run
from shop.models import Order, Pulse


@cron(
    "*/2 * * * * *", name="shop-pulse", timeout=timedelta(seconds=10), description="Feels the shop's pulse."
)
def shop_pulse() -> dict[str, int]:
    """Six fields: the first is seconds. The row carries the scheduled time, however late the run may be."""
    run = current_run()
    at = run.scheduled_at if run else timezone.now()
    orders = Order.objects.filter(imported_at__gt=at - timedelta(minutes=1), imported_at__lte=at).count()
    today = Order.objects.filter(placed_at__date=timezone.localdate())
    Pulse.objects.update_or_create(at=at, defaults={"orders": orders, "revenue": today.revenue()})
    return {"orders": orders}
