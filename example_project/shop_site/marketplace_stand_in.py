"""A stand-in for the marketplace: one new order each second, and a 503 for every third request."""

import random
import time
from datetime import UTC, datetime
from itertools import count

from django.http import HttpRequest, HttpResponse, JsonResponse

from shop.catalog import CATALOG

PAGE = 100
OPENED = time.time()
FIRST_NUMBER = 1001
CUSTOMERS = [
    "A. Okafor",
    "B. Lindqvist",
    "C. Moreau",
    "D. Tanaka",
    "E. Rossi",
    "F. Yilmaz",
    "G. Novak",
    "H. Silva",
]

request_numbers = count(1)


def orders(request: HttpRequest) -> HttpResponse:
    """Return the orders after number `after`, oldest first."""
    if next(request_numbers) % 3 == 2:
        return HttpResponse(
            "We are being repaired, come back in a moment.", status=503, content_type="text/plain"
        )
    first = max(int(request.GET.get("after", 0)) + 1, FIRST_NUMBER)
    end = FIRST_NUMBER + int(time.time() - OPENED)
    return JsonResponse({"orders": [order(number) for number in range(first, end)[:PAGE]]})


def order(number: int) -> dict[str, str | int]:
    """Return order `number`. While the server runs, an order never changes."""
    chance = random.Random(number)
    return {
        "number": number,
        "placed_at": datetime.fromtimestamp(OPENED + number - FIRST_NUMBER, UTC).isoformat(),
        "customer": chance.choice(CUSTOMERS),
        "sku": chance.choice(CATALOG).sku,
        "quantity": chance.choice([1, 1, 1, 2, 2, 3]),
    }
