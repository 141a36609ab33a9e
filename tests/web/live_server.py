"""A server in a thread of the test, and models whose answers the test can delay."""

import contextlib
import http.client
import json
import socket
import threading
import time

import uvicorn

from beamtree.models.answers import answers
from beamtree.web import protocol

JSON = {"Content-Type": "application/json"}
LINES = {**JSON, "Accept": "application/x-ndjson, application/json;q=0.9"}


class Slow:
    """Delays answers until they are released, and records the texts."""

    def __init__(self):
        self.begun, self.go, self.read = threading.Event(), threading.Event(), []

    def __call__(self, model, texts, labels):
        self.read += texts
        self.begun.set()
        assert self.go.wait(30)
        return answers(model, texts, labels)


@contextlib.contextmanager
def running(app, send_buffer=None):
    """The port of a server for the application, as `beamtree serve` starts it.

    send_buffer: size in bytes of the operating system's buffer for each connection.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        server = uvicorn.Server(protocol.server_config(app))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


@contextlib.contextmanager
def asking(port, headers=JSON, **asked):
    """A connection with a request to /api/parse; the client disconnects at the end of the block."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/api/parse", json.dumps(asked), headers)
    with contextlib.closing(connection):
        yield connection


def read_answer(client):
    """Status, headers and JSON of the next answer on a socket."""
    with http.client.HTTPResponse(client) as answer:
        answer.begin()
        return answer.status, answer.headers, json.load(answer)


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
