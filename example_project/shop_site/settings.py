"""The settings of the shop. Environment variables set the values that differ between machines.

DATABASE_URL      postgres://user:password@host:5432/name; default: an SQLite file in SHOP_DIR
REDIS_URL         redis://host:6379/0 or unix:///path/to/redis.sock?db=0
MARKETPLACE_URL   where new orders come from
SHOP_DIR          directory of the SQLite file and the reports
SHOP_PREFIX       separates several shops that share one Redis
SHOP_DEBUG        1 for Django's debug mode
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import django

PROJECT = Path(__file__).resolve().parent.parent
SHOP_DIR = Path(os.environ.get("SHOP_DIR", PROJECT / "var"))
SHOP_DIR.mkdir(parents=True, exist_ok=True)
SHOP_PREFIX = os.environ.get("SHOP_PREFIX", "shop")
REPORTS_DIR = SHOP_DIR / "reports"
INCOMING_DIR = SHOP_DIR / "incoming"
MARKETPLACE_URL = os.environ.get("MARKETPLACE_URL", "http://127.0.0.1:8000/marketplace/orders/")

SECRET_KEY = "an example has no secrets"
DEBUG = os.environ.get("SHOP_DEBUG") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]


def postgresql(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "HOST": unquote(parts.hostname or ""),
        "PORT": parts.port or "",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "OPTIONS": dict(parse_qsl(parts.query)),
    }


def sqlite(path: Path) -> dict[str, Any]:
    """Return settings with which several processes can use one SQLite file.

    Readers never wait, and writers wait for each other instead of failing.
    """
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL",
        },
    }


DATABASE_URL = os.environ.get("DATABASE_URL", "")
DATABASES = {
    "default": postgresql(DATABASE_URL) if DATABASE_URL else sqlite(SHOP_DIR / "shop.sqlite3")
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The scheduler's locks use this cache, so its backend must be django-redis.
REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": SHOP_PREFIX,
    },
}

CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://").replace(
    "?db=", "?virtual_host="
)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_DEFAULT_QUEUE = SHOP_PREFIX

# Management commands that jobs may run as "command:NAME". The admin accepts no others.
DCRON_COMMANDS = ["clearsessions"]

# Middleware around every job's code, outermost first: two of django-dcron and one of the shop.
DCRON_MIDDLEWARE = [
    "django_dcron.execution.log_capture.capture_log",
    "django_dcron.execution.time_limit.limit_time",
    "shop.witness.witness",
]

INSTALLED_APPS = [
    "django_dcron",  # before the admin, so that it can add the cluster's health to the admin index
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_htmx",
    "shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
if django.VERSION >= (6, 0):  # the first release with CSP; django-dcron's pages need no exception
    MIDDLEWARE.append("django.middleware.csp.ContentSecurityPolicyMiddleware")
    SECURE_CSP = {"default-src": ["'self'"], "img-src": ["'self'", "data:"]}
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "shop_site.urls"
STATIC_URL = "static/"
LOGIN_URL = "admin:login"
TIME_ZONE = "UTC"
USE_TZ = True

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "INFO"},
    # Remove Django's own handlers, which would log every record twice.
    "loggers": {"django": {"handlers": []}, "django.server": {"handlers": [], "propagate": True}},
}
