"""Connections: half-sent requests, data that is not HTTP, too many connections, and clients that do not read."""

import contextlib
import json
import select
import socket
import time

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from beamtree.models.pretrained import load
from beamtree.web import app, protocol
from beamtree.web.guard import HEADERS
from beamtree.web.worker import Limits
from web import toy_models
from web.live_server import read_answer, running
from web.using import ask

BODY = json.dumps({"model": "one", "text": toy_models.EXPRESSION}).encode()
HEAD = b"POST /api/parse HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
REQUEST = HEAD % len(BODY) + BODY
HALF_HEAD, HALF_BODY = REQUEST[:60], REQUEST[:-10]


@pytest.fixture(scope="module")
def served(folder):
    return app.create_app({"one": load(folder / "one")}, Limits(body_seconds=1, requests=5))


@pytest.fixture(scope="module")
def port(served):
    with running(served) as port:
        yield port


@contextlib.contextmanager
def connected(port, count=1):
    """Connections to the server."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(count)]


def assert_error(answer, status, message):
    assert answer[0] == status
    assert answer[2] == {"error": message}
    for name, value in HEADERS.items():
        assert answer[1].get_all(name) == [value]
    assert answer[1].get_all("Connection") == ["close"]


def test_300_half_sent_requests_are_closed_within_5_seconds_and_others_are_answered(folder):
    """With the default limits of `beamtree serve`."""
    with toy_models.serving(folder, "one") as address, connected(int(address.rsplit(":", 1)[1]), 300) as clients:
        sent = {}
        for index, client in enumerate(clients):
            client.sendall(HALF_HEAD if index % 2 else HALF_BODY)
            sent[client] = time.monotonic()
        assert ask(address, model="one", text=toy_models.EXPRESSION)["text"] == toy_models.EXPRESSION
        took = [when - sent[client] for client, when in closed(clients)]
        assert len(took) == 300
        assert max(took) < 5
        assert ask(address, model="one", text=toy_models.EXPRESSION)["text"] == toy_models.EXPRESSION


def closed(clients):
    """The clients, and the times at which the server closed their connections with status 408."""
    received = dict.fromkeys(clients, b"")
    while received:
        readable = select.select(received, [], [], 10)[0]
        assert readable, f"{len(received)} connections are still open"
        for client in readable:
            data = client.recv(65536)
            if data:
                received[client] += data
            else:
                assert received.pop(client).startswith(b"HTTP/1.1 408 ")
                yield client, time.monotonic()


@pytest.mark.parametrize("half", [HALF_HEAD, HALF_BODY], ids=["headers", "body"])
@pytest.mark.parametrize("before", [0, 1])
def test_a_half_sent_request_is_answered_with_status_408(port, half, before):
    """Also after a complete request on the same connection."""
    with connected(port) as (client,):
        for _ in range(before):
            client.sendall(REQUEST)
            assert read_answer(client)[0] == 200
        client.sendall(half)
        assert_error(read_answer(client), 408, "the request was not complete within 1 seconds")
        assert client.recv(1) == b""


def test_bytes_that_arrive_slowly_do_not_extend_the_time(port):
    for start in (HALF_HEAD, HALF_BODY):
        with connected(port) as (client,):
            client.sendall(start)
            begun = time.monotonic()
            while not select.select([client], [], [], 0.2)[0]:
                client.sendall(b"1")
                assert time.monotonic() - begun < 5
            assert client.recv(13) == b"HTTP/1.1 408 "


def test_headers_and_body_share_the_time(port):
    with connected(port) as (client,):
        begun = time.monotonic()
        client.sendall(HALF_HEAD)
        time.sleep(0.8)
        client.sendall(HALF_BODY.removeprefix(HALF_HEAD))
        assert read_answer(client)[0] == 408
        assert time.monotonic() - begun < 1.6


def test_a_connection_without_a_request_is_closed_without_an_answer(port):
    with connected(port) as (client,):
        assert client.recv(1) == b""
    with connected(port) as (client,):
        client.sendall(REQUEST)
        assert read_answer(client)[0] == 200
        assert client.recv(1) == b""


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",  # the start of a TLS handshake
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 100_000,
        HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked") + b"no length\r\n",
    ],
    ids=["nonsense", "tls", "long header", "chunk"],
)
def test_data_that_is_not_http_is_answered_with_status_400(port, data):
    with connected(port) as (client,):
        client.sendall(data)
        assert_error(read_answer(client), 400, "the request is not valid HTTP")


def test_a_body_that_is_wrong_after_the_answer_closes_the_connection(port, caplog):
    """The answer, 415, does not wait for the body."""
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(port) as (client,):
        client.sendall(head)
        assert read_answer(client)[0] == 415
        client.sendall(b"no length\r\n")
        assert client.recv(1) == b""
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_request_for_a_websocket_is_answered_as_any_other(port, served):
    assert protocol.server_config(served).ws == "none"  # same as the default if no package for them is installed
    with connected(port) as (client,):
        client.sendall(
            b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        status, headers, body = read_answer(client)
    assert (status, body) == (404, {"error": "Not Found"})
    assert headers["X-Frame-Options"] == "DENY"


def test_connections_beyond_the_maximum_are_refused(port):
    with connected(port, 10):  # twice the maximum number of requests
        with connected(port) as (client,):
            client.sendall(REQUEST)
            answer = read_answer(client)
            assert client.recv(1) == b""
        assert_error(answer, 503, "too many connections are open: try again in a moment")
        assert answer[1]["Retry-After"] == "1"
    with connected(port) as (client,):
        client.sendall(REQUEST)
        assert read_answer(client)[0] == 200


@pytest.mark.parametrize("requests", [1, 1000])
def test_a_client_that_does_not_read_its_answer_is_disconnected(served, monkeypatch, requests):
    """Also if the rest of the answer is small, and the server has nothing more to write."""
    monkeypatch.setattr(protocol, "_UNREAD_SECONDS", 1)
    content = len(json.dumps(served.openapi(), separators=(",", ":")))
    received = 0
    with running(served, send_buffer=2048) as port, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(20)
        client.connect(("127.0.0.1", port))
        with contextlib.suppress(ConnectionError):
            client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * requests)
            time.sleep(4)  # the buffers of the operating system accept more data at first
            while data := client.recv(65536):
                received += len(data)
    assert received < content * requests
