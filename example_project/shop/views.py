from typing import Any

from django.conf import settings
from django.contrib.admin.views.decorators import staff_member_required
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from shop.models import Order, Product, Pulse


def home(request: HttpRequest) -> HttpResponse:
    pulses = list(reversed(Pulse.objects.all()[:60]))
    context: dict[str, Any] = {
        "products": Product.objects.all(),
        "orders": Order.objects.select_related("product")[:12],
        "pulses": pulses,
        "highest": max((pulse.orders for pulse in pulses), default=1),
        "reports": sorted((path.name for path in settings.REPORTS_DIR.glob("*.csv")), reverse=True)[
            :12
        ],
    }
    return render(request, "shop/home.html", context)


@staff_member_required
def report(request: HttpRequest, name: str) -> FileResponse:
    """Return a report. `name` must match an existing file, so it can't contain another path."""
    for path in settings.REPORTS_DIR.glob("*.csv"):
        if path.name == name:
            return FileResponse(path.open("rb"), as_attachment=True)
    raise Http404(name)
