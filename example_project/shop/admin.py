from django.contrib import admin

from shop.models import Execution, Order, Product, Pulse


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    list_display = ("sku", "name", "category", "price", "discount", "on_hand", "counted_at")
    list_filter = ("category",)
    search_fields = ("sku", "name")
    readonly_fields = ("on_hand", "counted_at")


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("number", "placed_at", "customer", "product", "quantity", "total")
    list_filter = ("product__category",)
    list_select_related = ("product",)
    search_fields = ("=number", "customer", "product__name")
    date_hierarchy = "placed_at"


@admin.register(Pulse)
class PulseAdmin(admin.ModelAdmin):
    list_display = ("at", "orders", "revenue")


@admin.register(Execution)
class ExecutionAdmin(admin.ModelAdmin):
    list_display = ("run_id", "attempt", "process", "at")
