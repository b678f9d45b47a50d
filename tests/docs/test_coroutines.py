"""The guide to coroutine functions: its job runs, and its limit is the default."""

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from django_dcron import conf, targets
from django_dcron.execution.executor import execute
from tests.docs.test_documents import ROOT
from tests.execution.conftest import attempt_of
from tests.factories import make_idle_job, make_run
from tests.waiting import TIMEOUT

GUIDE = (ROOT / "docs" / "how-to" / "coroutines.md").read_text()


@pytest.fixture
def price_port() -> Iterator[int]:
    """A server that answers with a price. Its event loop has a thread of its own."""
    loop = asyncio.new_event_loop()
    ports: list[int] = []
    is_ready = threading.Event()

    async def answer(reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"12.5\n")
        await writer.drain()
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "localhost", 0)
        ports.append(server.sockets[0].getsockname()[1])
        is_ready.set()
        async with server:
            await stopped.wait()

    stopped = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert is_ready.wait(TIMEOUT)
    yield ports[0]
    loop.call_soon_threadsafe(stopped.set)
    thread.join()
    loop.close()


@pytest.mark.django_db(transaction=True)
def test_job_of_the_guide_fetches_its_prices(price_port: int) -> None:
    (source,) = re.findall(r"```python\n# shop/jobs.py\n(.*?)```", GUIDE, re.DOTALL)
    with targets.isolated_registry():
        names: dict[str, Any] = {"__name__": "shop.jobs"}
        exec(compile(source.replace("7000", str(price_port)), "coroutines.md", "exec"), names)  # noqa: S102
        (declaration,) = targets.declarations()
        shops = {"shops": ["localhost", "localhost"]}
        run = make_run(make_idle_job(target=declaration.target, kwargs=shops))
        execute(run.pk, 1, worker="w")
    assert attempt_of(run).result == "[12.5, 12.5]"


def test_guide_names_the_default_limit() -> None:
    assert re.search(r"`DCRON_COROUTINES` \((\d+)\)", GUIDE)[1] == str(conf.settings.COROUTINES)  # type: ignore[index]
