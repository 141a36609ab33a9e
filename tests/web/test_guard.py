"""What is refused before the application sees it, and the headers that every answer has."""

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

    app.add_middleware(Guard, hosts=["localhost", "Own.Example"], most_bytes=1000)
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
        assert "does not answer to the name" in answer.json()["error"]


def test_every_answer_tells_the_browser_what_it_may_do(client):
    answers = [
        client.get("/"),
        client.get("/nothing"),
        client.get("/", headers={"host": "evil.example"}),
        client.post("/", content=b"x" * 2000, headers={"content-type": "application/json"}),
        client.post("/", json={"text": "abc"}),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 421, 413, 200]
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
