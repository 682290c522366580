"""The hooks of the documents, with the libraries that they are for."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.helpers.scripts import run_script
from tests.test_document_blocks import block_of

PAGE = "docs/inside-a-job.md"


def run_with_hook(folder: Path, begin: str, program: str) -> str:
    """Run *program* beside the module of the page that begins like that."""
    (folder / f"{begin}.py").write_text(block_of(PAGE, f"# {begin}.py\n"))
    return run_script(folder, program)


def test_structlog_has_the_names(tmp_path: Path) -> None:
    block = block_of(PAGE, "async with asyncpool.Pool(2, around=")
    program = STRUCTLOG.replace("BLOCK", textwrap.indent(block, "    ").strip())
    assert run_with_hook(tmp_path, "hooks", program) == (
        "[('attempt', 1), ('event', 'at work'), ('function', '__main__.work'), "
        "('job', 1)]\n{}\n"
    )


STRUCTLOG = """
import asyncio, asyncpool, structlog

def work():
    bound = {}
    def keep(logger, name, event):
        bound.update(event)
        raise structlog.DropEvent
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, keep])
    structlog.get_logger().info("at work")
    return sorted(bound.items(), key=str)

async def main():
    BLOCK
    print(structlog.contextvars.get_contextvars())

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_sentry_gets_one_event_for_each_exception(tmp_path: Path) -> None:
    assert run_with_hook(tmp_path, "sentry_hook", SENTRY) == (
        "[('__main__.fail', 2, 'no'), ('__main__.fail_later', 3, 'no, later')]\n"
    )


SENTRY = """
import asyncio, asyncpool, sentry_sdk
from asyncpool import worker_state
from sentry_sdk.transport import Transport

class Kept(Transport):
    def capture_envelope(self, envelope):
        event = envelope.get_event()
        worker_state().events.append((
            event["tags"]["function"],
            event["contexts"]["job"]["id"],
            event["exception"]["values"][0]["value"],
        ))

def init():
    worker_state().events = []
    sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", transport=Kept)

def work():
    pass

def fail():
    raise ValueError("no")

async def fail_later():
    await asyncio.sleep(0)
    raise ValueError("no, later")

def events():
    return worker_state().events

async def main():
    async with asyncpool.Pool(1, initializer=init, around="sentry_hook:report") as pool:
        await pool.submit(work)
        for function in (fail, fail_later):
            try:
                await pool.submit(function)
            except ValueError:
                pass
        print(await pool.submit(events))

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_opentelemetry_has_a_span_of_each_job(tmp_path: Path) -> None:
    assert run_with_hook(tmp_path, "otel_hook", OPENTELEMETRY) == (
        "[('inner', '__main__.work', 'UNSET'), ('__main__.work', None, 'UNSET'), "
        "('inner', '__main__.work', 'UNSET'), ('__main__.work', None, 'UNSET'), "
        "('__main__.fail', None, 'ERROR')]\n"
    )


OPENTELEMETRY = """
import asyncio, asyncpool
from asyncpool import worker_state
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

def init():
    worker_state().exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(worker_state().exporter))
    trace.set_tracer_provider(provider)

async def work():
    with trace.get_tracer("shop").start_as_current_span("inner"):
        await asyncio.sleep(0)

def fail():
    raise ValueError("no")

def spans():
    found = worker_state().exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in found}
    return [
        (span.name, span.parent and names[span.parent.span_id], span.status.status_code.name)
        for span in found
    ]

async def main():
    async with asyncpool.Pool(
        1, concurrency=8, initializer=init, around="otel_hook:span"
    ) as pool:
        await pool.submit(work)
        await pool.submit(work)
        try:
            await pool.submit(fail)
        except ValueError:
            pass
        print(await pool.submit(spans))

if __name__ == "__main__":
    asyncio.run(main())
"""
