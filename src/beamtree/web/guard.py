"""What stands before the application: who may ask, how much, in what form; and what a browser may do with the answer.

A server on one's own machine is reached by every page that the browser shows. Such a page may send a form, so only JSON
is taken, which a browser sends to a foreign server only if that allows it, as this one never does. And such a page may
let its own name point to this machine, so the name that was asked for must be one of the server's.
"""

import ipaddress
import json
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


class Refused(Exception):
    """A request that the application does not get to see."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Guard:
    """Middleware that refuses foreign hosts, forms and large bodies, and puts `HEADERS` on every answer."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], most_bytes: int) -> None:
        self.app, self.most_bytes = app, most_bytes
        self.hosts = {host.lower() for host in hosts}

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
            self._check(scope["method"], Headers(scope=scope))
            body = await self._body(receive) if scope["method"] == "POST" else None
            await self.app(scope, receive if body is None else _replay(body, receive), guarded_send)
        except Refused as refused:
            assert not started, "a request is refused before the application answers it"
            await _send_error(guarded_send, refused.status, str(refused))

    def _check(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if not is_allowed(host, self.hosts):
            raise Refused(
                421, f"this server does not answer to the name {host[:100]!r}: see beamtree serve --allow-host"
            )
        if method != "POST":
            return
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, f"the content type is {kind[:100]!r}: it must be application/json")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.most_bytes:
            raise Refused(413, f"the request has {int(length):,} bytes: {self.most_bytes:,} are the most")

    async def _body(self, receive: Receive) -> bytes:
        """All of it, and no more: a client need not say how much it will send."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the client has gone")
            body += message.get("body", b"")
            if len(body) > self.most_bytes:
                raise Refused(413, f"the request has more than {self.most_bytes:,} bytes, which are the most")
            if not message.get("more_body", False):
                return bytes(body)


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


async def _send_error(send: Send, status: int, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
