"""What stands before the application: who may ask, how much, in what form; and what a browser may do with the answer.

A server on one's own machine is reached by every page that the browser shows. Such a page may send a form, so only JSON
is taken, which a browser sends to a foreign server only if that allows it, as this one never does. And such a page may
let its own name point to this machine, so the name that was asked for must be one of the server's.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from beamtree.web.errors import Busy, Disconnected, InternalError, RequestError, RequestTimeout

HEADERS = {
    # Scripts and styles are the page's own files; all else that a page can load is nothing.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# Key of the scope: the time of the event loop at which the request must be complete. `beamtree.web.protocol` sets it,
# as it knows when the first byte arrived.
DEADLINE = "beamtree.deadline"

logger = logging.getLogger(__name__)


class Guard:
    """Middleware that refuses foreign hosts, forms, large and slow bodies, and requests beyond the maximum number.

    It puts `HEADERS` on every answer, and answers every exception with JSON: a `RequestError` with its message, any
    other with that of `InternalError`.

    body_seconds: time from the arrival of a request until its body is complete.
    most_requests: requests answered at the same time. A request counts once its body is complete.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], most_bytes: int, most_requests: int, body_seconds: int
    ) -> None:
        self.app, self.most_bytes, self.most_requests, self.body_seconds = app, most_bytes, most_requests, body_seconds
        self.hosts = {host.lower() for host in hosts}
        self._active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            await self._answer(scope, receive, guarded_send)
        except Exception as error:
            if started:
                raise  # the server logs it and closes the connection
            if not isinstance(error, RequestError):
                logger.exception("%s %s failed", scope["method"], scope["path"])
                error = InternalError()
            await send_error(guarded_send, error)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check(scope["method"], Headers(scope=scope))
        if scope["method"] == "POST":
            deadline = scope.get(DEADLINE, asyncio.get_running_loop().time() + self.body_seconds)
            receive = _replay(await self._body(receive, deadline), receive)
        with self._counted():
            await self.app(scope, receive, send)

    def _check(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if not is_allowed(host, self.hosts):
            raise RequestError(
                f"this server does not answer to the name {host[:100]!r}: see beamtree serve --allow-host", 421
            )
        if method != "POST":
            return
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(f"the content type is {kind[:100]!r}: it must be application/json", 415)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.most_bytes:
            raise RequestError(f"the request has {int(length):,} bytes: {self.most_bytes:,} are the most", 413)

    async def _body(self, receive: Receive, deadline: float) -> bytes:
        """All of it, and no more: a client need not say how much it will send."""
        body = bytearray()
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    body += message.get("body", b"")
                    if len(body) > self.most_bytes:
                        raise RequestError(
                            f"the request has more than {self.most_bytes:,} bytes, which are the most", 413
                        )
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise RequestTimeout(self.body_seconds) from None

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._active >= self.most_requests:
            raise Busy(f"{self._active:,} requests are being answered already: try again in a moment")
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1


def is_allowed(host: str, names: Collection[str]) -> bool:
    """Whether a request's Host is one of the names, or an address, which no foreign page can have made its own."""
    name = host.lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def error_headers(error: RequestError) -> list[tuple[bytes, bytes]]:
    """Headers of an answer that tells the error."""
    kind = {"Content-Type": "application/json", "Content-Length": str(len(error.body))}
    return [(name.lower().encode(), value.encode()) for name, value in {**HEADERS, **kind, **error.headers}.items()]


async def send_error(send: Send, error: RequestError) -> None:
    await send({"type": "http.response.start", "status": error.status, "headers": error_headers(error)})
    await send({"type": "http.response.body", "body": error.body})


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once more, for the application; then what the client does."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
