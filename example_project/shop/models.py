"""A small shop for coffee and tea. Its scheduled jobs are in `tasks.py` and `cron.py`."""

from decimal import Decimal

from django.db import models
from django.db.models import F, Sum


class Product(models.Model):
    class Category(models.TextChoices):
        COFFEE = "coffee", "Coffee"
        TEA = "tea", "Tea"
        EQUIPMENT = "equipment", "Equipment"

    sku = models.CharField("SKU", max_length=12, unique=True)
    name = models.CharField(max_length=80)
    category = models.CharField(max_length=12, choices=Category)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    discount = models.PositiveSmallIntegerField(
        default=0, help_text="Percentage off the price, such as 15."
    )
    delivered = models.PositiveIntegerField(
        help_text="Number of items delivered so far, such as 400."
    )
    on_hand = models.IntegerField(
        null=True, editable=False, help_text="Number of items at the last stocktake."
    )
    counted_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ("sku",)

    def __str__(self) -> str:
        return self.name

    @property
    def selling_price(self) -> Decimal:
        return (self.price * (100 - self.discount) / 100).quantize(Decimal("0.01"))


class OrderQuerySet(models.QuerySet["Order"]):
    def revenue(self) -> Decimal:
        return self.aggregate(sum=Sum(F("quantity") * F("unit_price")))["sum"] or Decimal(0)


class Order(models.Model):
    number = models.PositiveIntegerField(
        unique=True, help_text="Order number of the marketplace, such as 10042."
    )
    product = models.ForeignKey(Product, on_delete=models.PROTECT, related_name="orders")
    quantity = models.PositiveSmallIntegerField()
    unit_price = models.DecimalField(max_digits=8, decimal_places=2)
    customer = models.CharField(max_length=80)
    placed_at = models.DateTimeField()
    imported_at = models.DateTimeField(auto_now_add=True, db_index=True)
    reported_at = models.DateTimeField(
        null=True,
        editable=False,
        db_index=True,
        help_text="Time of the sales report that contains the order.",
    )

    objects = OrderQuerySet.as_manager()

    class Meta:
        ordering = ("-number",)

    def __str__(self) -> str:
        return f"Order {self.number}"

    @property
    def total(self) -> Decimal:
        return self.quantity * self.unit_price


class Pulse(models.Model):
    """The shop's figures at one moment. The front page shows the latest ones."""

    at = models.DateTimeField(unique=True)
    orders = models.PositiveIntegerField(
        help_text="Number of orders imported in the previous minute."
    )
    revenue = models.DecimalField(
        max_digits=12, decimal_places=2, help_text="Revenue since midnight."
    )

    class Meta:
        ordering = ("-at",)

    def __str__(self) -> str:
        return f"{self.at:%H:%M:%S}: {self.orders} orders"


class Execution(models.Model):
    """A row of `witness.py` for each start of a job's code. It proves that nothing ran twice."""

    run_id = models.UUIDField(db_index=True)
    attempt = models.PositiveSmallIntegerField()
    process = models.PositiveIntegerField()
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.run_id} #{self.attempt} in process {self.process}"
