"""URLs of the health endpoints and the metrics: ``include("django_dcron.monitoring.urls")``."""

from __future__ import annotations

from django.urls import path

from django_dcron.monitoring import views
from django_dcron.monitoring.metrics.views import metrics

app_name = "dcron_monitoring"
urlpatterns = [
    path("livez", views.livez, name="livez"),
    path("readyz", views.readyz, name="readyz"),
    path("health", views.health, name="health"),
    path("metrics", metrics, name="metrics"),
]
