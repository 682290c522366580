"""The example that makes thumbnails: over HTTP, of any image, while workers die."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import given, strategies as st
from PIL import Image

import asyncpool
from tests.helpers.images import image, opened, progressive_jpeg, vast_png
from tests.helpers.loops import EACH_LOOP, loop_factories
from tests.helpers.patience import patience
from tests.helpers.web import Service, run_service
from thumbnails.app import app
from thumbnails.images import BadImageError, make_thumbnail

GOOD = image("JPEG")
CUT = GOOD[: len(GOOD) // 2]

# 96 MB of coefficients, gone through for minutes if nobody stops it.
ENDLESS = progressive_jpeg(4000, rounds=5000)
# 216 MB of them, for some seconds.
GREEDY = progressive_jpeg(6000, rounds=200)
ENOUGH = 160 << 20  # bytes: between the two


@pytest.fixture(params=EACH_LOOP)
def loop(request: pytest.FixtureRequest) -> str:
    """The event loop that serves."""
    if request.param not in loop_factories():
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


class TestOverHttp:
    pytestmark = pytest.mark.asyncio

    async def test_images_become_thumbnails(self, tmp_path: Path, loop: str) -> None:
        async with run_service(tmp_path, loop=loop, workers=2) as service:
            for kind in ("JPEG", "PNG", "GIF", "WEBP"):
                for size, expected in {
                    "small": (64, 48),
                    "medium": (256, 192),
                    "large": (640, 480),  # nothing is gained by enlarging it
                }.items():
                    answer = await service.thumbnail(image(kind), size)
                    assert answer.status_code == 200, answer.text
                    assert answer.headers["content-type"] == "image/webp"
                    thumbnail = opened(answer.content)
                    assert (thumbnail.format, thumbnail.size) == ("WEBP", expected)
            # Several MB, which travel through shared memory.
            noise, file = Image.effect_noise((3000, 2000), 100), io.BytesIO()
            noise.save(file, "PNG")
            answer = await service.thumbnail(file.getvalue())
            assert opened(answer.content).size == (256, 171)
            health = await service.health()
            assert (health["state"], health["completed"]) == ("running", 13)
            assert health["shared_memory"] > 1 << 20

    async def test_what_is_no_image_is_refused_and_hurts_nobody(
        self, tmp_path: Path, loop: str
    ) -> None:
        bad = {
            b"": "this is no GIF, JPEG, PNG or WebP image",
            b"hello": "this is no GIF, JPEG, PNG or WebP image",
            image("TIFF"): "this is no GIF, JPEG, PNG or WebP image",
            CUT: "this image cannot be read: image file is truncated",
            vast_png(
                50_000
            ): "this image cannot be read: Image size (2500000000 pixels)",
            vast_png(8_000): "this image cannot be read: Image size (64000000 pixels)",
        }
        async with run_service(tmp_path, loop=loop, workers=2) as service:
            for upload, reason in bad.items():
                answer = await service.thumbnail(upload)
                assert answer.status_code == 422
                assert answer.json()["error"].startswith(reason)
            assert (await service.thumbnail(GOOD)).status_code == 200
            health = await service.health()
            assert (health["completed"], health["crashes"]) == (7, 0)

    @pytest.mark.parametrize(
        "request_",
        [
            # Nothing of the body is sent, since the client waits to be asked for it.
            b"Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n",
            # It does not say how much there will be, and has not come to the end.
            b"Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + 1001 * b"x",
        ],
        ids=["announced", "streamed"],
    )
    async def test_an_upload_is_bounded(
        self, tmp_path: Path, loop: str, request_: bytes
    ) -> None:
        async with run_service(tmp_path, loop=loop, max_upload=1000) as service:
            status, body = await converse(service, request_)
            assert status == 413
            assert body == b'{"error":"an image may have 1000 bytes"}'
            assert (await service.thumbnail(1000 * b"x")).status_code == 422

    async def test_images_that_kill_their_workers_hurt_nobody_else(
        self, tmp_path: Path, loop: str
    ) -> None:
        settings = {"workers": 2, "max_memory": ENOUGH, "timeout": 5}
        async with (
            run_service(tmp_path, loop=loop, **settings) as service,
            patience(),
            asyncio.TaskGroup() as group,
        ):
            greedy = group.create_task(service.thumbnail(GREEDY))
            await service.until(lambda health: health["busy"])
            for _ in range(20):
                assert (await service.thumbnail(GOOD)).status_code == 200
            assert (await greedy).status_code == 500
            reason = "this image needs too much memory"
            assert greedy.result().json() == {"error": reason}

            endless = group.create_task(service.thumbnail(ENDLESS))
            await service.until(lambda health: health["busy"])
            for _ in range(20):
                assert (await service.thumbnail(GOOD)).status_code == 200
            assert (await endless).status_code == 504
            assert endless.result().json() == {
                "error": "this image was not done in time"
            }

            health = await service.until(lambda health: health["idle"] == 2)
            # The second one was killed as planned.
            assert (health["crashes"], health["restarts"]) == (1, 2)
            assert (health["completed"], health["failed"]) == (40, 2)

    async def test_a_client_that_goes_away_takes_its_job_along(
        self, tmp_path: Path, loop: str
    ) -> None:
        settings = {"workers": 1, "timeout": 600}
        async with run_service(tmp_path, loop=loop, **settings) as service:
            running = await send_away(service, ENDLESS)
            (pid,) = await pids(service)
            # Until it decodes: a job that has not begun to can be ended without its worker.
            began = used_by(pid)
            await service.until(
                lambda health: health["busy"] == 1 and used_by(pid) > began + 0.2
            )
            waiting = await send_away(service, GOOD)
            await service.until(lambda health: health["queued"] == 1)
            waiting.close()
            await service.until(lambda health: health["cancelled"] == 1)
            running.close()
            health = await service.until(lambda health: health["idle"] == 1)
            assert (health["cancelled"], health["crashes"]) == (2, 0)
            assert [pid] != await pids(service)
            assert (await service.thumbnail(GOOD)).status_code == 200
            health = await service.health()
            assert (health["completed"], health["failed"]) == (1, 0)

    async def test_load_is_shed_and_who_was_accepted_is_served(
        self, tmp_path: Path, loop: str
    ) -> None:
        settings = {"workers": 1, "max_queued": 2}
        async with (
            run_service(tmp_path, loop=loop, **settings) as service,
            asyncio.TaskGroup() as group,
        ):
            pid = await stop_worker(service)
            accepted = [group.create_task(service.thumbnail(GOOD)) for _ in range(3)]
            await service.until(
                lambda health: (health["busy"], health["queued"]) == (1, 2)
            )
            for _ in range(5):
                refused = await service.thumbnail(GOOD)
                assert refused.status_code == 503
                assert refused.headers["retry-after"] == "1"
                assert refused.json() == {"error": "too many images are waiting"}
            os.kill(pid, signal.SIGCONT)
            assert [(await answer).status_code for answer in accepted] == 3 * [200]
            assert (await service.thumbnail(GOOD)).status_code == 200


class TestHealth:
    pytestmark = pytest.mark.asyncio

    async def test_a_pool_that_cannot_work_is_not_healthy(self) -> None:
        restart = asyncpool.RestartPolicy.limited(1, 60.0)
        async with (
            asyncpool.Pool(1, restart_policy=restart) as pool,
            served(pool) as client,
        ):
            health = await client.get("/health")
            assert (health.status_code, health.json()["state"]) == (200, "running")
            for _ in range(2):
                with suppress(
                    asyncpool.errors.WorkerCrashedError,
                    asyncpool.errors.PoolBrokenError,
                ):
                    await pool.submit(os._exit, 1)
            health = await client.get("/health")
            assert (health.status_code, health.json()["state"]) == (503, "broken")
            answer = await client.post("/thumbnails", content=GOOD)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json() == {"error": "no worker can be kept alive"}


class TestImages:
    @given(data=st.data(), kind=st.sampled_from(("JPEG", "PNG", "GIF", "WEBP")))
    def test_a_damaged_image_is_a_bad_image_or_none(
        self, data: st.DataObject, kind: str
    ) -> None:
        damaged = bytearray(image(kind, 64, 48))
        places = st.integers(0, len(damaged) - 1)
        for at, byte in data.draw(
            st.dictionaries(places, st.integers(0, 255), max_size=8)
        ).items():
            damaged[at] = byte
        end = data.draw(st.just(len(damaged)) | st.integers(0, len(damaged)))
        try:
            thumbnail = make_thumbnail(damaged[:end], 32)
        except BadImageError:
            return
        assert max(opened(thumbnail).size) <= 32


async def converse(service: Service, rest: bytes) -> tuple[int, bytes]:
    """Post *rest*, headers and as much of a body as there is; return the answer."""
    host, port = service.address
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /thumbnails HTTP/1.1\r\nHost: localhost\r\n" + rest)
    async with patience():
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split()[0])
        body = await reader.readexactly(length)
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body


def used_by(pid: int) -> float:
    """Return the seconds of CPU time that a worker has used."""
    return psutil.Process(pid).cpu_times().user


async def send_away(
    service: Service, upload: bytes, *, only: int | None = None
) -> asyncio.StreamWriter:
    """Post an image, or some of it, on a connection of its own; wait for no answer."""
    _, writer = await asyncio.open_connection(*service.address)
    head = b"POST /thumbnails HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % len(upload) + upload[:only])
    await writer.drain()
    return writer


def occupied(health: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the slots that have a worker."""
    return [slot for slot in health["slots"] if slot["pid"] is not None]


async def pids(service: Service) -> list[int]:
    return [slot["pid"] for slot in occupied(await service.health())]


async def stop_worker(service: Service) -> int:
    """Stop the only worker, so that what it gets stays under way; return its pid."""
    (pid,) = await pids(service)
    os.kill(pid, signal.SIGSTOP)
    return pid


@asynccontextmanager
async def served(pool: asyncpool.Pool) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the service, in this process and with this pool."""

    async def with_pool(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "state": {"pool": pool}}, receive, send)

    transport = httpx.ASGITransport(with_pool)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        yield client
