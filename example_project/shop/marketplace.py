"""The client of the marketplace where customers place the shop's orders."""

import json
from http import HTTPStatus
from typing import TypedDict
from urllib.error import HTTPError
from urllib.request import urlopen

from django.conf import settings

from django_dcron import PermanentFailure

TIMEOUT = 5.0


class PlacedOrder(TypedDict):
    number: int
    placed_at: str
    customer: str
    sku: str
    quantity: int


def orders_after(number: int) -> list[PlacedOrder]:
    """Return the next orders, oldest first.

    Errors propagate, so that the job's policy decides about retries. A 4xx response is a permanent
    failure, because the request itself is wrong.
    """
    try:
        with urlopen(f"{settings.MARKETPLACE_URL}?after={number}", timeout=TIMEOUT) as response:  # noqa: S310 (our own URL)  # nosec B310
            orders: list[PlacedOrder] = json.load(response)["orders"]
            return orders
    except HTTPError as error:
        if error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise PermanentFailure(f"The marketplace refuses our request: {error}") from error
        raise
