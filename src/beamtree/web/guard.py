"""Middleware that validates requests before they reach the application, and adds security headers to all answers.

Any page in a browser can send requests to a server on the same machine. Such a page can submit a form, so only JSON is
accepted: a browser sends it to another origin only if the server allows that, which this one never does. Such a page
can also make its own host name resolve to this machine (DNS rebinding), so the Host header must be an allowed name.
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
    # Allow only scripts, styles, images and requests of the same origin.
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
# Key of the ASGI scope: the time of the event loop by which the request must be complete. Set by
# `beamtree.web.protocol`, which records when the first byte arrived.
DEADLINE = "beamtree.deadline"

logger = logging.getLogger(__name__)


class Guard:
    """Middleware that refuses unknown hosts, forms, large and slow bodies, and too many concurrent requests.

    It adds `HEADERS` to every answer, and reports every exception as JSON: a `RequestError` with its message, all
    others as `InternalError`.

    Attributes:
        app: the application.
        hosts: allowed host names, in lower case.
        max_bytes: maximum size of a body.
        max_requests: maximum number of requests answered at the same time. A request counts once its body is complete.
        body_seconds: maximum time from the arrival of a request until its body is complete.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], max_bytes: int, max_requests: int, body_seconds: int
    ) -> None:
        self.app, self.max_bytes, self.max_requests, self.body_seconds = app, max_bytes, max_requests, body_seconds
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
            raise RequestError(f"the host name {host[:100]!r} is not allowed: see beamtree serve --allow-host", 421)
        if method != "POST":
            return
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(f"the content type is {kind[:100]!r}: it must be application/json", 415)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.max_bytes:
            raise RequestError(f"the request has {int(length):,} bytes: the maximum is {self.max_bytes:,}", 413)

    async def _body(self, receive: Receive, deadline: float) -> bytes:
        """Receive the whole body. Its size is checked here too, since a request may have no Content-Length."""
        body = bytearray()
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    body += message.get("body", b"")
                    if len(body) > self.max_bytes:
                        raise RequestError(
                            f"the request has more than {self.max_bytes:,} bytes, which is the maximum", 413
                        )
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise RequestTimeout(self.body_seconds) from None

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._active >= self.max_requests:
            raise Busy(f"{self._active:,} requests are already being answered: try again in a moment")
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1


def is_allowed(host: str, names: Collection[str]) -> bool:
    """Whether the Host header is one of the names, or an IP address, which DNS rebinding cannot forge."""
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
    """The headers of an answer that reports an error."""
    kind = {"Content-Type": "application/json", "Content-Length": str(len(error.body))}
    return [(name.lower().encode(), value.encode()) for name, value in {**HEADERS, **kind, **error.headers}.items()]


async def send_error(send: Send, error: RequestError) -> None:
    await send({"type": "http.response.start", "status": error.status, "headers": error_headers(error)})
    await send({"type": "http.response.body", "body": error.body})


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` for the application that returns the body first, and later events of the client after it."""
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
