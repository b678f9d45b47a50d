from django.contrib import admin
from django.urls import path

from shop import views
from shop_site import marketplace_stand_in

admin.site.site_header = admin.site.site_title = "Leaf & Bean"

urlpatterns = [
    path("", views.home, name="home"),
    path("reports/<str:name>", views.report, name="report"),
    path("admin/", admin.site.urls),
    # A real marketplace is another company's service. This site imitates one, so that the demo
    # needs no network.
    path("marketplace/orders/", marketplace_stand_in.orders, name="marketplace-orders"),
]
