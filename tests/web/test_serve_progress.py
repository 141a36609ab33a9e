"""Progress of a request as lines of JSON, and the work of a client that has disconnected."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from beamtree.models.answers import as_json
from beamtree.models.pretrained import load
from beamtree.nn.engine.pool import Pool
from beamtree.web import app, worker
from beamtree.web.guard import HEADERS
from beamtree.web.worker import Limits
from web.live_server import JSON, LINES, asking, running, wait_until
from web.toy_models import EXPRESSION


@pytest.fixture(scope="module")
def model(folder):
    return load(folder / "one")


@pytest.fixture
def served(model):
    return app.create_app({"one": model}, Limits(seconds=20))


@pytest.fixture
def port(served):
    with running(served) as port:
        yield port


@pytest.fixture
def documents(monkeypatch):
    """The texts whose documents were created."""
    made = []
    monkeypatch.setattr(worker, "as_json", lambda answer, name: made.append(answer.text) or as_json(answer, name))
    return made


def read_event(answer):
    return json.loads(answer.readline())


def read_events(port, **asked):
    with asking(port, LINES, model="one", **asked) as connection:
        answer = connection.getresponse()
        assert answer.status == 200
        return [json.loads(line) for line in answer]


def test_the_last_line_is_the_document(port):
    with asking(port, model="one", text=EXPRESSION) as connection:
        document = json.load(connection.getresponse())
    with asking(port, LINES, model="one", text=EXPRESSION) as connection:
        answer = connection.getresponse()
        *others, last = answer
    assert json.loads(last) == {"event": "done", "document": document}
    assert {json.loads(line)["event"] for line in others} <= {"queued", "running"}
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    for name, value in HEADERS.items():
        assert answer.headers.get_all(name) == [value]


def test_a_client_learns_how_long_the_model_has_worked(port, slow):
    with asking(port, LINES, model="one", text="1") as connection:
        answer = connection.getresponse()
        assert slow.begun.wait(20)
        begun, seconds = time.monotonic(), []
        while len(seconds) < 5:
            event = read_event(answer)
            if event["event"] == "running":
                seconds.append(event["seconds"])
        assert 1 < time.monotonic() - begun < 10  # one line every half second
        assert seconds == sorted(seconds)
        assert 1 < seconds[-1] < 10
        slow.go.set()
        assert [json.loads(line)["event"] for line in answer][-1] == "done"


def test_a_waiting_client_learns_its_position_and_moves_up_when_another_disconnects(served, port, slow):
    with asking(port, model="one", text="1"):
        assert slow.begun.wait(20)
        with asking(port, LINES, model="one", text="2") as second:
            waiting = second.getresponse()
            assert read_event(waiting) == {"event": "queued", "position": 1}
            with asking(port, LINES, model="one", text="3") as third:
                last = third.getresponse()
                assert read_event(last) == {"event": "queued", "position": 2}
                second.close()
                waiting.close()
                wait_until(lambda: read_event(last) == {"event": "queued", "position": 1})
                slow.go.set()
                assert [json.loads(line)["event"] for line in last][-1] == "done"
    assert slow.read == ["1", "3"]


@pytest.mark.parametrize("headers", [JSON, LINES], ids=["document", "progress"])
def test_a_waiting_request_is_removed_when_its_client_disconnects(served, port, slow, headers):
    (queue,) = served.state.workers
    with asking(port, model="one", text="1") as first:
        assert slow.begun.wait(20)
        with asking(port, headers, model="one", text="2"):
            wait_until(lambda: len(queue._waiting) == 1)
        wait_until(lambda: not queue._waiting)
        slow.go.set()
        assert first.getresponse().status == 200
    assert slow.read == ["1"]


@pytest.mark.parametrize("headers", [JSON, LINES], ids=["document", "progress"])
def test_a_running_request_is_stopped_when_its_client_disconnects(served, port, slow, documents, headers):
    """Its document is not created."""
    (queue,) = served.state.workers
    with asking(port, headers, model="one", text="1"):
        assert slow.begun.wait(20)
        running_job = queue._running
    wait_until(lambda: running_job.cancelled)
    slow.go.set()
    with asking(port, model="one", text="2") as connection:
        assert json.load(connection.getresponse())["text"] == "2"
    assert slow.read == ["1", "2"]
    assert documents == ["2"]


def test_a_forward_pass_is_stopped_when_its_client_disconnects(served, port, monkeypatch, documents):
    """Long before its end: the encoder checks at each step whether the client is still connected."""
    (queue,) = served.state.workers
    steps, begun = [], threading.Event()
    compose = Pool.compose

    def slowly(pool, *arguments):
        steps.append(begun.set() or time.sleep(0.02))
        return compose(pool, *arguments)

    monkeypatch.setattr(Pool, "compose", slowly)
    with asking(port, model="one", text=" ".join(["[MAX", *"12" * 400, "]"])):
        assert begun.wait(20)
        running_job = queue._running
    wait_until(lambda: running_job.cancelled)
    wait_until(lambda: not queue.busy)
    assert len(steps) < 400
    assert documents == []


def test_a_request_that_is_too_slow_is_stopped(model, slow, documents):
    served = app.create_app({"one": model}, Limits(seconds=1))
    with running(served) as port:
        *_, late = read_events(port, text="1")
        slow.go.set()
        *_, done = read_events(port, text="2")
    assert (late["event"], late["status"]) == ("error", 504)
    assert "one did not answer within 1 seconds" in late["error"]
    assert done["event"] == "done"
    assert documents == ["2"]


def test_errors_are_told_by_the_status_or_by_the_last_line(port, monkeypatch):
    with asking(port, LINES, model="none", text="1") as connection:
        answer = connection.getresponse()
        assert answer.status == 422
        assert "unknown model 'none'" in json.load(answer)["error"]
    *_, event = read_events(port, text="[MXA 1 ]")
    assert (event["event"], event["status"]) == ("error", 422)
    assert "unknown token '[MXA'" in event["error"]
    monkeypatch.setattr(worker, "answers", lambda model, texts, labels: 1 / 0)
    *_, event = read_events(port, text="1")
    assert event == {"event": "error", "error": "internal error: see the log of the server", "status": 500}


def test_a_stopped_server_refuses_what_waits(served, slow):
    with running(served) as port, ThreadPoolExecutor() as threads:
        asked = [threads.submit(read_events, port, text=str(number)) for number in range(3)]
        (queue,) = served.state.workers
        wait_until(lambda: queue._running and len(queue._waiting) == 2)
        queue.stop()
        for each in asked:
            *_, event = each.result(timeout=20)
            assert event == {"event": "error", "error": "the server is being stopped", "status": 503}
        with asking(port, model="one", text="1") as connection:
            assert connection.getresponse().status == 503
    assert len(slow.read) == 1
