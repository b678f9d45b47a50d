from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("dcron/", include("django_dcron.contrib.rest.urls")),
    path("probes/", include("django_dcron.monitoring.urls")),
]
