"""The client of the marketplace where the shop's orders are placed."""

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
    """The next orders, oldest first. What goes wrong is raised: whether to try again is for the job's policy.

    Only where trying again cannot help the code says so itself: the marketplace calls our request wrong (4xx).
    """
    try:
        with urlopen(f"{settings.MARKETPLACE_URL}?after={number}", timeout=TIMEOUT) as response:  # noqa: S310
            orders: list[PlacedOrder] = json.load(response)["orders"]
            return orders
    except HTTPError as error:
        if error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise PermanentFailure(f"The marketplace refuses our request: {error}") from error
        raise
