"""``path("dcron/", include("django_dcron.observability.urls"))``: probes, for load balancers and monitoring."""

from __future__ import annotations

from django.urls import path

from django_dcron.observability import views
from django_dcron.observability.metrics.views import metrics

app_name = "dcron_observability"
urlpatterns = [
    path("livez", views.livez, name="livez"),
    path("readyz", views.readyz, name="readyz"),
    path("health", views.health, name="health"),
    path("metrics", metrics, name="metrics"),
]
