"""The HTTP/1.1 protocol of uvicorn with timeouts, a maximum number of connections, and errors as JSON.

A connection is closed if a request is not complete within `Limits.body_seconds` of its first byte. The headers are
timed here, since uvicorn waits for them without a limit; the body is timed in `Guard`. A new connection must also send
its first byte within that time.
"""

import asyncio
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from beamtree.web.errors import InvalidHTTP, RequestError, RequestTimeout, TooManyConnections
from beamtree.web.guard import DEADLINE, error_headers, send_error
from beamtree.web.worker import Limits

_GRACE = 2  # seconds for requests in progress to finish when the server is stopped
_UNREAD_SECONDS = 30  # a client that does not read its answer for this long is disconnected


def server_config(app: FastAPI) -> uvicorn.Config:
    """The settings of uvicorn for an application from `create_app`."""
    return uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",  # treat requests for WebSockets as ordinary requests
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=app.state.limits.body_seconds,
        timeout_graceful_shutdown=_GRACE,
    )


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol, with the limits of an application from `create_app`."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._limits: Limits = self.config.app.state.limits  # type: ignore[union-attr]
        self._receiving: asyncio.TimerHandle | None = None  # set while headers are awaited
        self._sending: asyncio.TimerHandle | None = None  # set while data is waiting to be sent

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # call `pause_writing` whenever the client does not read
        if len(self.connections) > self._limits.connections:
            self.app = _refuse_connection
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._receiving, self._sending):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._receiving is None and (self.cycle is None or self.cycle.response_complete):
            self._await_headers()
        super().data_received(data)

    def handle_events(self) -> None:
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle and self._receiving is not None:  # the headers are complete
            self.scope[DEADLINE] = self._receiving.when()  # type: ignore[literal-required]
            self._receiving.cancel()
            self._receiving = None

    def pause_writing(self) -> None:
        super().pause_writing()
        unsent = self.transport.get_write_buffer_size()
        self._sending = self.loop.call_later(_UNREAD_SECONDS, self._check_sending, unsent)

    def resume_writing(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for data that is not HTTP."""
        self._refuse(InvalidHTTP())

    def _await_headers(self) -> None:
        self._receiving = self.loop.call_later(self._limits.body_seconds, self._headers_timed_out)

    def _headers_timed_out(self) -> None:
        self._receiving = None
        if self.conn.trailing_data[0]:  # part of the headers was received
            self._refuse(RequestTimeout(self._limits.body_seconds))
        else:
            self.transport.close()

    def _refuse(self, error: RequestError) -> None:
        """Send the error, unless an answer has already been started, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            reason = HTTPStatus(error.status).phrase.encode()
            response = h11.Response(status_code=error.status, headers=error_headers(error), reason=reason)
            for event in (response, h11.Data(data=error.body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _check_sending(self, before: int) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent >= before:
            self.transport.abort()
        else:
            self._sending = self.loop.call_later(_UNREAD_SECONDS, self._check_sending, unsent)


async def _refuse_connection(scope: Scope, receive: Receive, send: Send) -> None:
    await send_error(send, TooManyConnections())
