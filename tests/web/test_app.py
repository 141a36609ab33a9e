"""The JSON API: documents, error messages, and a server that stays responsive while its models run."""

import copy
import dataclasses
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser

import pytest
from fastapi.testclient import TestClient

from beamtree.data.tokenizers import make_tokenizer
from beamtree.models.answers import answers, as_json
from beamtree.models.pretrained import load
from beamtree.nn.encoders import encoder
from beamtree.web import MAIN, SCRIPTS, STYLES, app, draw, worker
from beamtree.web.guard import HEADERS
from beamtree.web.worker import Limits
from web.toy_models import EXPRESSION

ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def models(folder):
    return {name: load(folder / name) for name in ("one", "english", "pairs")}


@pytest.fixture(scope="module")
def client(models):
    limits = Limits(characters=500, tokens=50)
    return TestClient(app.create_app(models, limits), base_url=ADDRESS)


def ask(client, **asked):
    return client.post("/api/parse", json=asked)


def test_the_models_are_listed_with_what_a_client_must_know(client, models):
    answer = client.get("/api/models").json()
    assert [each["name"] for each in answer["models"]] == ["one", "english", "pairs"]
    assert [each["pair"] for each in answer["models"]] == [False, False, True]
    assert answer["models"][0]["labels"] == list(models["one"].labels)
    assert answer["models"][0]["encoder"] == "bt-grc"
    assert answer["limits"] == {"characters": 500, "tokens": 50, "waiting": 256, "seconds": 60}


def test_every_example_can_be_parsed(client):
    for each in client.get("/api/models").json()["models"]:
        answer = ask(client, model=each["name"], **dict(zip(("text", "second"), each["example"], strict=False)))
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["sides"]) == (2 if each["pair"] else 1)


def test_the_answer_is_the_document_of_the_text(client, models):
    (expected,) = answers(models["one"], [EXPRESSION], labels=True)
    answer = ask(client, model="one", text=EXPRESSION)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == json.loads(json.dumps(as_json(expected, "one")))


def test_a_pair_has_two_texts_and_one_alone_has_no_label(client, models):
    (expected,) = answers(models["pairs"], ["( not a )\tb"], labels=True)
    assert ask(client, model="pairs", text="( not a )", second="b").json() == as_json(expected, "pairs")
    assert ask(client, model="pairs", text="(\tnot a\t)", second="b").json()["label"] == expected.label
    alone = ask(client, model="pairs", text="( not a )", second="").json()
    assert alone["label"] is None
    assert len(alone["sides"]) == 1


@pytest.mark.parametrize(
    ("asked", "status", "message"),
    [
        ({"model": "oen", "text": "5"}, 422, "unknown model 'oen' (did you mean 'one'?); known: one, english, pairs"),
        ({"model": "one", "text": ""}, 422, "the text '' is empty"),
        ({"model": "one", "text": "[MXA 1 ]"}, 422, "unknown token '[MXA' (did you mean '[MAX'?)"),
        ({"model": "one", "text": "5", "second": "6"}, 422, "one takes single texts, not pairs"),
        ({"model": "one"}, 422, "text: Field required"),
        ({"text": "5"}, 422, "model: Field required"),
        ({"model": "one", "text": 5}, 422, "text: Input should be a valid string"),
        ({"model": "one", "text": ["5", "6"]}, 422, "text: Input should be a valid string"),
        ({"model": "one", "text": "5", "file": "/etc/passwd"}, 422, "file: Extra inputs are not permitted"),
        ({"model": "one", "text": "1 " * 51}, 413, "the text has 51 tokens: the maximum is 50"),
        ({"model": "pairs", "text": "a", "second": "a " * 51}, 413, "the text has 51 tokens: the maximum is 50"),
        ({"model": "one", "text": "1" * 501}, 413, "the text has 501 characters: the maximum is 500"),
        ({"model": "pairs", "text": "a", "second": " " * 501}, 413, "501 characters"),
        ({"model": "one", "text": "1" * 50_000}, 413, "bytes"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(client, asked, status, message):
    answer = ask(client, **asked)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"text"', b"null", b"\xff\xfe", b'{"model": "one", "text": "\\ud800"}']
)
def test_a_body_that_is_no_request_is_refused(client, body):
    answer = client.post("/api/parse", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"]


def test_half_a_character_is_refused_where_any_word_is_taken(client):
    body = b'{"model": "english", "text": "a \\udc80 film"}'
    answer = client.post("/api/parse", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert "half of a surrogate pair" in answer.json()["error"]
    assert ask(client, model="english", text="a 🎬 film\0 <b>").status_code == 200


def test_no_name_that_a_client_sends_becomes_a_path(client, folder):
    for name in (str(folder / "one"), "./one", "../one", "two", "owner/name", "/etc/passwd"):
        answer = ask(client, model=name, text="5")
        assert answer.status_code == 422
        assert "unknown model" in answer.json()["error"]
    for path in ("/app.py", "/../app.py", "/%2e%2e/app.py", "/one/config.yaml", "/view.js/../app.py"):
        assert client.get(path).status_code == 404


def test_other_ways_of_asking_are_refused_as_json(client):
    assert client.get("/api/parse").status_code == 405
    assert client.get("/nothing").json() == {"error": "Not Found"}


@pytest.mark.parametrize(
    ("status", "method", "path", "changes"),
    [
        (404, "GET", "/nothing", {}),
        (405, "GET", "/api/parse", {}),
        (405, "DELETE", "/", {}),
        (413, "POST", "/api/parse", {"json": {"model": "one", "text": "1 " * 51}}),
        (413, "POST", "/api/parse", {"json": {"model": "one", "text": "1" * 50_000}}),
        (415, "POST", "/api/parse", {"content": "text=5"}),
        (421, "GET", "/", {"headers": {"host": "evil.example"}}),
        (422, "POST", "/api/parse", {"json": {"model": "one", "text": ""}}),
        (422, "POST", "/api/parse", {"json": {"model": "one"}}),
        (422, "POST", "/api/parse", {"json": {"model": "none", "text": "5"}}),
    ],
)
def test_every_error_is_json_and_has_the_security_headers(client, status, method, path, changes):
    answer = client.request(method, path, **changes)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert answer.headers["content-type"] == "application/json"
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


@pytest.mark.parametrize("error", [ValueError, RuntimeError, AssertionError, MemoryError])
@pytest.mark.parametrize("place", ["answers", "as_json"])
def test_the_message_of_an_error_inside_the_model_is_in_the_log_only(models, monkeypatch, caplog, error, place):
    """The text may be valid: only errors of validation are sent to the client."""

    def fail(*arguments, **settings):
        raise error("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)")

    with TestClient(app.create_app({"one": models["one"]}), base_url=ADDRESS) as client:
        monkeypatch.setattr(worker, place, fail)
        answer = ask(client, model="one", text=EXPRESSION)
        assert answer.status_code == 500
        assert answer.json() == {"error": "internal error: see the log of the server"}
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        (record,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
        assert record.getMessage() == "the model one failed"
        assert "shapes cannot be multiplied" in caplog.text
        monkeypatch.undo()
        assert ask(client, model="one", text=EXPRESSION).status_code == 200


def test_errors_of_a_drawing_are_told_as_those_of_a_document(client, monkeypatch):
    asked = {"model": "one", "text": EXPRESSION, "format": "svg"}
    assert client.post("/api/draw", json=asked).headers["content-type"].startswith("image/svg+xml")
    for changes, message in (
        ({"beam": 99}, "beam 99 does not exist"),
        ({"text": "[MXA 1 ]"}, "unknown token '[MXA'"),
        ({"model": "oen"}, "unknown model 'oen'"),
    ):
        answer = client.post("/api/draw", json={**asked, **changes})
        assert answer.status_code == 422
        assert message in answer.json()["error"]

    def fail(*arguments, **settings):
        raise ValueError("a secret")

    monkeypatch.setattr(draw, "draw_tree", fail)
    answer = client.post("/api/draw", json=asked)
    assert answer.status_code == 500
    assert answer.json() == {"error": "internal error: see the log of the server"}


def test_an_answer_that_takes_too_long_is_given_up_and_what_waited_is_never_read(models, slow):
    served = app.create_app({"one": models["one"], "two": models["one"]}, Limits(seconds=1))
    with TestClient(served, base_url=ADDRESS) as client, ThreadPoolExecutor() as threads:
        late = [threads.submit(ask, client, model="one", text=str(number)) for number in range(3)]
        for each in late:
            answer = each.result(timeout=20)
            assert answer.status_code == 504
            assert "did not answer within 1 seconds" in answer.json()["error"]
        assert len(slow.read) == 1
        slow.go.set()
        assert ask(client, model="one", text="7").status_code == 200
        assert len(slow.read) == 2


def test_the_server_answers_while_a_model_reads(models, slow):
    served = app.create_app({"one": models["one"]}, Limits(waiting=2))
    with TestClient(served, base_url=ADDRESS) as client, ThreadPoolExecutor() as threads:
        first = threads.submit(ask, client, model="one", text="1")
        assert slow.begun.wait(20)
        assert client.get("/api/models").status_code == 200
        assert client.get("/").status_code == 200
        waiting = [threads.submit(ask, client, model="one", text="2") for _ in range(3)]
        # Two requests may wait; the last of the three is refused at once.
        refused = next(each.result() for each in _as_they_come(waiting))
        assert refused.status_code == 503
        assert "2 requests are already waiting for one" in refused.json()["error"]
        assert refused.headers["retry-after"] == "1"
        slow.go.set()
        assert first.result(timeout=20).status_code == 200
        assert sorted(each.result(timeout=20).status_code for each in waiting) == [200, 200, 503]


def _as_they_come(futures):
    from concurrent.futures import as_completed

    return as_completed(futures, timeout=20)


def test_one_text_at_a_time_is_read_by_a_model(models, monkeypatch):
    reading, most = 0, 0

    def counted(model, texts, labels):
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        found = list(answers(model, texts, labels))
        reading -= 1
        return iter(found)

    monkeypatch.setattr(worker, "answers", counted)
    with (
        TestClient(app.create_app({"one": models["one"]}), base_url=ADDRESS) as client,
        ThreadPoolExecutor(8) as threads,
    ):
        results = list(threads.map(lambda number: ask(client, model="one", text=str(number % 10)), range(40)))
    assert [result.json()["text"] for result in results] == [str(number % 10) for number in range(40)]
    assert most == 1


@pytest.mark.usefixtures("shape_checks_off")  # shape checks make it twice as slow
def test_two_models_of_one_size_in_parallel_give_each_its_right_answer(folder):
    both = {name: load(folder / name) for name in ("one", "two")}
    assert both["one"].config == both["two"].config
    texts = [f"[MAX {number % 10} [MIN {number // 10} 7 ] {number % 7} ]" for number in range(100)]
    asked = [(name, text) for text in texts for name in both]
    alone = [as_json(next(answers(both[name], [text], labels=True)), name) for name, text in asked]
    for one, two in zip(alone[::2], alone[1::2], strict=True):
        assert one["probabilities"] != two["probabilities"]
    with TestClient(app.create_app(both), base_url=ADDRESS) as client, ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda each: ask(client, model=each[0], text=each[1]).json(), asked))
    assert found == json.loads(json.dumps(alone))


def test_a_model_that_can_answer_no_request_is_refused_at_the_start(models):
    unable = copy.copy(models["english"])
    unable.config = dataclasses.replace(unable.config, data_options={"tokenizer": "custom"})
    with pytest.raises(ValueError, match=r"^own: the model was trained with a function as tokenizer, which is not"):
        app.create_app({"own": unable})
    with pytest.raises(ValueError, match=r"^own: bt-grc builds no trees"):
        app.create_app({"own": with_encoder(models["one"], "recurrent-grc")})
    with pytest.raises(ValueError, match=r"^own: bt-grc needs gold trees, and its task has no rule"):
        app.create_app({"own": with_encoder(models["english"], "gold-tree-grc")})


def test_a_text_without_a_gold_tree_is_a_mistake_of_the_request(models):
    served = app.create_app({"gold": with_encoder(models["one"], "gold-tree-grc")})
    with TestClient(served, base_url=ADDRESS) as client:
        assert ask(client, model="gold", text=EXPRESSION).status_code == 200
        answer = ask(client, model="gold", text="[MAX 2")
        assert answer.status_code == 422
        assert "unbalanced brackets" in answer.json()["error"]


def with_encoder(model, name):
    changed = copy.deepcopy(model)
    changed.model.encoder = encoder(name, dim=8)
    return changed.eval()


def test_the_interface_describes_itself_and_its_page_loads_nothing_from_elsewhere(client):
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {"/api/models", "/api/parse", "/api/draw"}
    assert {"200", "413", "415", "422", "503", "504"} <= set(described["paths"]["/api/parse"]["post"]["responses"])
    assert "50 tokens" in described["paths"]["/api/parse"]["post"]["description"]
    for path in ("/", "/docs"):
        for name, value in Links(client.get(path).text).found:
            assert "//" not in value, (path, name)
            assert value == "." or client.get(f"/{value}").status_code == 200


def test_the_page_loads_its_main_module_and_the_server_has_all_others(client):
    found = [value for name, value in Links(client.get("/").text).found if name == "src"]
    assert found == [MAIN]
    for name in SCRIPTS:
        assert client.get(f"/{name}").headers["content-type"].startswith("text/javascript")
    for name in STYLES:
        assert client.get(f"/{name}").headers["content-type"].startswith("text/css")


class Links(HTMLParser):
    """The addresses that a page refers to."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found += [(name, value) for name, value in attrs if name in ("src", "href", "action")]


def test_limits_are_at_least_one():
    with pytest.raises(ValueError, match="tokens is 0: it must be an integer of at least 1"):
        Limits(tokens=0)


def test_a_server_needs_a_model():
    with pytest.raises(ValueError, match="there are no models to serve"):
        app.create_app({})


def test_tokens_are_counted_by_the_models_own_tokenizer(models):
    """Also if its name does not identify it."""
    model = copy.copy(models["english"])
    model.tokenizer = make_tokenizer(lambda text: text.split("-"))
    one = worker.Worker("own", model, Limits(tokens=2))
    assert json.loads(one._document("good-film"))["sides"][0]["tokens"] == ["good", "film"]
    with pytest.raises(worker.TooLong, match="the text has 3 tokens: the maximum is 2"):
        one._document("good-bad-film")
