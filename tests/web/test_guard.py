"""Requests that are refused before they reach the application, and the headers of all answers."""

import asyncio
import json
import logging

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from beamtree.web.guard import HEADERS, Guard, is_allowed


@pytest.fixture(scope="module")
def client():
    app = FastAPI()

    @app.get("/")
    async def read() -> str:
        return "read"

    @app.post("/")
    async def write(body: dict[str, str]) -> int:
        return len(body["text"])

    @app.get("/broken")
    async def fail() -> None:
        raise ValueError("a secret")

    app.add_middleware(Guard, hosts=["localhost", "Own.Example"], max_bytes=1000, max_requests=2, body_seconds=1)
    return TestClient(app, base_url="http://127.0.0.1:8000")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("localhost:8000", True),
        ("LOCALHOST:8000", True),
        ("127.0.0.1:8000", True),
        ("192.168.1.7:8000", True),
        ("[::1]:8000", True),
        ("[::1]", True),
        ("own.example", True),
        ("evil.example", False),
        ("localhost.evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example:127.0.0.1", False),
        ("", False),
        ("[", False),
    ],
)
def test_only_addresses_and_names_of_its_own_are_answered_to(client, host, allowed):
    assert is_allowed(host, {"localhost", "own.example"}) is allowed
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == (200 if allowed else 421)
    if not allowed:
        assert "is not allowed" in answer.json()["error"]


def test_every_answer_tells_the_browser_what_it_may_do(client):
    answers = [
        client.get("/"),
        client.get("/nothing"),
        client.get("/", headers={"host": "evil.example"}),
        client.post("/", content=b"x" * 2000, headers={"content-type": "application/json"}),
        client.post("/", json={"text": "abc"}),
        client.get("/broken"),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 421, 413, 200, 500]
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value


def test_the_policy_allows_nothing_from_elsewhere_and_nothing_inline():
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    for word in ("unsafe-inline", "unsafe-eval", "http:", "https:", "*", "data:"):
        assert word not in policy


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/jsonx"],
)
def test_only_json_can_be_posted(client, kind):
    answer = client.post("/", content=b'{"text": "abc"}', headers={"content-type": kind})
    assert answer.status_code == 415
    assert "must be application/json" in answer.json()["error"]


def test_json_may_tell_its_encoding(client):
    answer = client.post("/", content=b'{"text": "abc"}', headers={"content-type": "Application/JSON; charset=utf-8"})
    assert answer.json() == 3


def test_a_large_body_is_refused_by_what_it_says_and_by_what_it_is(client):
    json = {"content-type": "application/json"}
    fits = b'{"text": "' + b"x" * 988 + b'"}'
    assert len(fits) == 1000
    assert client.post("/", content=fits, headers=json).json() == 988

    def pieces(body):
        yield body[:500]
        yield body[500:]

    assert client.post("/", content=pieces(fits), headers=json).json() == 988  # without a content length
    for content in (fits + b" ", pieces(fits + b" ")):
        answer = client.post("/", content=content, headers=json)
        assert answer.status_code == 413
        assert "1,000" in answer.json()["error"]
    answer = client.post("/", content=pieces(fits + b" "), headers={**json, "content-length": "5"})
    assert answer.status_code == 413


def test_the_message_of_an_unexpected_exception_is_in_the_log_only(client, caplog):
    answer = client.get("/broken")
    assert answer.status_code == 500
    assert answer.json() == {"error": "internal error: see the log of the server"}
    (record,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
    assert record.getMessage() == "GET /broken failed"
    assert "a secret" in caplog.text


class Exchange:
    """A request to a guarded application, with a body that the test sends, and the answer."""

    def __init__(self, guard):
        self.incoming, self.sent = asyncio.Queue(), []
        kind, host = (b"content-type", b"application/json"), (b"host", b"localhost")
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [kind, host]}
        self.task = asyncio.create_task(guard(scope, self.incoming.get, self.send))

    async def send(self, message):
        self.sent.append(message)

    async def send_body(self, body, more_body=False):
        await self.incoming.put({"type": "http.request", "body": body, "more_body": more_body})
        await asyncio.sleep(0.01)  # until it has been received

    async def answer(self):
        await asyncio.wait_for(self.task, 20)
        start, *bodies = self.sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return start["status"], headers, json.loads(b"".join(body["body"] for body in bodies))


async def echo(scope, receive, send):
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def guarded(app):
    return Guard(app, hosts=["localhost"], max_bytes=1000, max_requests=2, body_seconds=1)


def test_a_body_that_is_not_complete_in_time_is_refused():
    async def run():
        silent, slow, complete = (Exchange(guarded(echo)) for _ in range(3))
        await complete.send_body(b"[1,", more_body=True)
        await complete.send_body(b"2]")
        assert (await complete.answer())[2] == [1, 2]
        for _ in range(100):  # each byte is in time, but the whole body is not
            await slow.send_body(b"1", more_body=True)
            await asyncio.sleep(0.02)
            if slow.task.done():
                break
        return [await silent.answer(), await slow.answer()]

    for status, headers, body in asyncio.run(run()):
        assert status == 408
        assert body == {"error": "the request was not complete within 1 seconds"}
        assert headers["connection"] == "close"
        assert {name.lower() for name in HEADERS} <= set(headers)


def test_requests_beyond_the_maximum_are_refused_until_others_are_answered():
    async def run():
        let_go = asyncio.Event()

        async def wait(scope, receive, send):
            await let_go.wait()
            await echo(scope, receive, send)

        guard = guarded(wait)
        unfinished = [Exchange(guard) for _ in range(5)]  # do not count, since their bodies are not complete
        waiting = [Exchange(guard) for _ in range(2)]
        for each in waiting:
            await each.send_body(b"1")
        refused = Exchange(guard)
        await refused.send_body(b"2")
        status, headers, body = await refused.answer()
        assert (status, headers["retry-after"]) == (503, "1")
        assert body == {"error": "2 requests are already being answered: try again in a moment"}
        let_go.set()
        assert [(await each.answer())[0] for each in waiting] == [200, 200]
        later = Exchange(guard)
        await later.send_body(b"3")
        assert (await later.answer())[2] == 3
        assert [(await each.answer())[0] for each in unfinished] == [408] * 5

    asyncio.run(run())


def test_a_failed_request_no_longer_counts():
    async def fail(scope, receive, send):
        raise RuntimeError

    async def run():
        guard = guarded(fail)
        for _ in range(5):
            failed = Exchange(guard)
            await failed.send_body(b"1")
            assert (await failed.answer())[0] == 500

    asyncio.run(run())
