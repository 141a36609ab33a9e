"""`beamtree serve` as a program: its address, its exit, and its error messages."""

import importlib.util
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from typer.testing import CliRunner

from beamtree import cli
from beamtree.cli import serve
from beamtree.models import pretrained
from web import toy_models
from web.using import ask

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from beamtree.web.worker import Limits


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ("serve", *arguments), prog_name="beamtree")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("models")
    toy_models.save(found / "one")
    return found


@pytest.fixture
def process(folder):
    started = toy_models.start(folder, "one", "--max-tokens", "100000", "--max-characters", "1000000")
    yield started
    started.kill()
    started.communicate()


def test_it_tells_its_address_answers_there_and_ends_quietly_with_ctrl_c(process):
    address = toy_models.address(process)
    assert address.startswith("http://127.0.0.1:")
    document = ask(address, model="one", text=toy_models.EXPRESSION)
    assert document["text"] == toy_models.EXPRESSION
    assert len(document["sides"][0]["tokens"]) == 9
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == ("", "", 0)


def test_ctrl_c_ends_it_while_a_model_reads_a_long_text(process):
    address = toy_models.address(process)
    host, port = address.removeprefix("http://").split(":")
    body = json.dumps({"model": "one", "text": "[SM " + "1 " * 90_000 + "]"}).encode()
    head = f"POST /api/parse HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"{head}\r\n\r\n".encode() + body)
        time.sleep(1)  # until the model is running
        process.send_signal(signal.SIGINT)
        begun = time.monotonic()
        out, err = process.communicate(timeout=30)
    assert time.monotonic() - begun < 15
    assert (out, err, process.returncode) == ("", "", 0)


def test_a_port_that_is_taken_is_told_before_any_model_is_loaded(folder, monkeypatch):
    monkeypatch.setattr(pretrained, "load", lambda *_: pytest.fail("a model was loaded"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = invoke(str(folder / "one"), "--port", str(port))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: cannot listen on port {port} of 127.0.0.1 (")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "unknown model 'nothing'"),
        (["./nothing"], "./nothing: there is no such folder"),
        (["--port", "65536"], "port is 65536: it must be between 0 and 65,535"),
        (["--port", "-1"], "port is -1"),
        (["--host", "no.such.host.invalid"], "host is 'no.such.host.invalid', which cannot be found"),
        (["--host", "192.0.2.1", "--public"], "cannot listen on port 0 of 192.0.2.1"),
        (["--host", "192.0.2.1"], "host is '192.0.2.1', which other machines can reach"),
        (["--host", "0.0.0.0"], "but beamtree has no authentication: add --public"),
        (["--host", "::"], "host is '::', which other machines can reach"),
        (["--max-tokens", "0"], "max-tokens is 0: it must be an integer of at least 1"),
        (["--max-seconds", "0"], "max-seconds is 0"),
        (["--device", "tpu"], "known: auto, cpu, cuda"),
        ([], "this version of beamtree has no shipped models"),
    ],
)
def test_a_mistake_is_answered_in_one_line(tmp_path, monkeypatch, shape_checks_off, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pretrained, "_SHIPPED", tmp_path)
    result = invoke(*(["--port", "0"] if "--port" not in arguments else []), *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_public_server_says_what_to_put_in_front_of_it(folder, host):
    """On standard error: the first line of standard output is the address."""
    process = toy_models.start(folder, "one", "--host", host, "--public", "--allow-host", "trees.test")
    try:
        address = toy_models.address(process)
        assert ask(address, model="one", text="5")["text"] == "5"
        assert status(address, "trees.test") == 200
        assert status(address, "trees.example.org") == 421
    finally:
        process.send_signal(signal.SIGINT)
        _, notice = process.communicate(timeout=20)
    assert "neither encryption nor authentication" in notice
    assert "terminates TLS and\nauthenticates users" in notice
    assert "--allow-host trees.test" in notice
    for line in (
        "listen 443 ssl;",
        "server_name trees.test;",
        f"proxy_pass {address};",
        "proxy_set_header Host $host;",
        "auth_basic beamtree;",
        f"client_max_body_size {Limits().bytes};",
    ):
        assert f" {line}\n" in notice


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_an_address_that_only_this_machine_reaches_needs_no_flag(host):
    with serve._listening(host, 0, public=False) as listener:
        assert listener.getsockname()[1] > 0


def status(address, host):
    """The HTTP status of the page for a request with this Host."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers={"Host": host}), timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    result = invoke("anything")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: serve needs uvicorn, which is not installed: pip install 'beamtree[web]', or '.[web]' in a clone\n"
    )


def test_other_commands_do_not_load_the_server():
    script = "import sys, beamtree.cli; print({'fastapi', 'uvicorn', 'starlette'} & set(sys.modules))"
    paths = [str(toy_models.SOURCE)]
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths}; {script}"], capture_output=True, text=True
    )
    assert result.stdout == "set()\n", result.stderr


def test_the_help_has_examples():
    shown = " ".join(invoke("--help").stdout.split())
    assert "Usage: beamtree serve" in shown
    assert "beamtree serve --open" in shown
