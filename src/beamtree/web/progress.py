"""The progress of a request as lines of JSON, and cancellation when the client disconnects."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from beamtree.web.errors import Disconnected, RequestError
from beamtree.web.worker import ParseJob, Worker

T = TypeVar("T")

JSON_LINES = "application/x-ndjson"


class ProgressResponse(StreamingResponse):
    """The progress of a job as lines of JSON, followed by its document or its error.

    {"event": "queued", "position": 3}
    {"event": "running", "seconds": 1.2}
    {"event": "done", "document": {…}}
    {"event": "error", "error": …, "status": 504}
    """

    def __init__(self, worker: Worker, job: ParseJob) -> None:
        # Otherwise nginx would buffer the lines.
        super().__init__(_events(worker, job), media_type=JSON_LINES, headers={"X-Accel-Buffering": "no"})
        self.worker, self.job = worker, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self.stream_response(send))
        except Disconnected:
            return
        finally:
            self.worker.cancel(self.job)


async def _events(worker: Worker, job: ParseJob) -> AsyncIterator[bytes]:
    try:
        async for state in worker.progress(job):
            yield _line(state)
        document = await worker.result(job)
    except RequestError as error:
        yield _line({"event": "error", "error": str(error), "status": error.status})
    else:
        yield b'{"event": "done", "document": ' + document + b"}\n"


def _line(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await the result of the work. If the client disconnects first, cancel the work and raise `Disconnected`."""
    result = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({result, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise Disconnected
        return result.result()
    finally:
        result.cancel()
        disconnected.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def accepts_lines(request: Request) -> bool:
    """Whether the client accepts `JSON_LINES`."""
    accepted = request.headers.get("accept", "").lower().split(",")
    return JSON_LINES in (each.split(";")[0].strip() for each in accepted)
