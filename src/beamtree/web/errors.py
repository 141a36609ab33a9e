"""Errors that are reported to the client, each with its HTTP status.

All other exceptions are internal errors: their messages and tracebacks are written only to the log of the server.
"""

import json
from collections.abc import Mapping
from typing import ClassVar


class RequestError(Exception):
    """A request that cannot be answered. The message is sent to the client.

    `status` overrides the status of the class.
    """

    status = 422
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = type(self).status if status is None else status

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        return json.dumps({"error": str(self)}).encode()


class Disconnected(RequestError):
    """The client has disconnected."""

    status = 400

    def __init__(self) -> None:
        super().__init__("the client has disconnected")


class InvalidHTTP(RequestError):
    """The received data is not a valid HTTP request."""

    status = 400
    headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}

    def __init__(self) -> None:
        super().__init__("the request is not valid HTTP")


class RequestTimeout(RequestError):
    """The request was not received completely in time."""

    status = 408
    headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the request was not complete within {seconds} seconds")


class TooLong(RequestError):
    """The text is longer than the server allows."""

    status = 413


class InternalError(RequestError):
    """An unexpected exception, whose own message is not sent to the client."""

    status = 500

    def __init__(self) -> None:
        super().__init__("internal error: see the log of the server")


class Busy(RequestError):
    """Too many requests are waiting or being answered."""

    status = 503
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "1"}


class TooManyConnections(Busy):
    """The maximum number of connections is open."""

    headers: ClassVar[Mapping[str, str]] = {**Busy.headers, "Connection": "close"}

    def __init__(self) -> None:
        super().__init__("too many connections are open: try again in a moment")


class TooSlow(RequestError):
    """The answer was not ready in time."""

    status = 504
