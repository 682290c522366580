"""A whole Django application in one file, with views of each kind."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import connection
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    LOGGING_CONFIG=None,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],  # tells the length
    ROOT_URLCONF=__name__,
    SECRET_KEY="not one",
)
django.setup()


def _answer(size: int) -> HttpResponse:
    return HttpResponse(f"{os.getpid()} {size}")


def plain(request: HttpRequest) -> HttpResponse:
    """Answer in a thread, with what the database says."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 6 * 7")
        [size] = cursor.fetchone()
    return _answer(size)


async def later(request: HttpRequest) -> HttpResponse:
    """Answer in the event loop."""
    return _answer(0)


async def upload(request: HttpRequest) -> HttpResponse:
    """Answer with the size of what was sent."""
    return _answer(len(request.body))


async def stream(request: HttpRequest) -> StreamingHttpResponse:
    """Answer in pieces."""

    async def pieces() -> AsyncIterator[str]:
        for piece in (str(os.getpid()), " ", "1"):
            yield piece

    # The client here needs to know how much there is.
    size = str(len(f"{os.getpid()} 1"))
    return StreamingHttpResponse(pieces(), headers={"Content-Length": size})


urlpatterns = [
    path("", plain),
    path("later", later),
    path("upload", upload),
    path("stream", stream),
]

app = get_asgi_application()
