"""`beamtree serve`: a web page that shows the labels and trees of a text, and its JSON API."""

# ruff: noqa: B006 (typer takes the default of a repeatable argument as a list, which is never modified)

# PyTorch is imported inside functions, so that help is fast.
import ipaddress
import os
import socket
import sys
import webbrowser
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beamtree.utils.checks import check_integer
from beamtree.utils.devices import find_device
from beamtree.utils.extras import require

if TYPE_CHECKING:
    from beamtree.web.worker import Limits

EXAMPLE = (
    "Examples: the shipped models; two runs to compare, on another port; behind a reverse proxy\n\n"
    "  beamtree serve --open\n\n"
    "  beamtree serve runs/listops/bt-grc-seed0 runs/listops/bt-grc-onesoft-seed0 --port 8080\n\n"
    "  beamtree serve --public --allow-host trees.example.org"
)
_LAST_PORT = 65_535
_EXAMPLE_NAME = "trees.example.org"
_FIRST = "listops-bt-grc"  # of the shipped models: the page opens with its example
_PROXY = """\
beamtree itself has neither encryption nor authentication. Put a reverse proxy in front of it that terminates TLS and
authenticates users, and make sure that only the proxy can reach {address}. With nginx, for example:

    limit_conn_zone $binary_remote_addr zone=beamtree:1m;
    server {{
        listen 443 ssl;
        server_name {name};
        ssl_certificate /etc/ssl/{name}.pem;
        ssl_certificate_key /etc/ssl/{name}.key;
        auth_basic beamtree;
        auth_basic_user_file /etc/nginx/beamtree.htpasswd;  # written by the command htpasswd
        limit_conn beamtree 50;
        client_max_body_size {max_bytes};
        client_body_timeout {body_seconds}s;
        location / {{
            proxy_pass {address};
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_buffering off;  # pass on the progress of long requests
            proxy_read_timeout {seconds}s;
        }}
    }}

Start beamtree with --allow-host {name}: it refuses requests for other hosts. If the proxy runs on this machine, leave
out --host, so that other machines cannot bypass the proxy."""


def serve_command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Folders of runs, shipped models, or hub ids.",
            show_default="all shipped models",
        ),
    ] = [],
    host: Annotated[
        str, typer.Option(help="Address to listen on. An address that other machines can reach requires --public.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free port.")] = 8000,
    opened: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to run the models.")] = "auto",
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            help="Allow addresses that other machines can reach, and print how to add TLS and authentication.",
        ),
    ] = False,
    allow_host: Annotated[
        list[str],
        typer.Option(help="Host name that requests may use, besides IP addresses and localhost; repeatable."),
    ] = [],
    max_tokens: Annotated[int, typer.Option(help="Maximum number of tokens per text.")] = 2_000,
    max_characters: Annotated[int, typer.Option(help="Maximum number of characters per text.")] = 20_000,
    max_waiting: Annotated[int, typer.Option(help="Maximum number of requests in the queue of a model.")] = 256,
    max_seconds: Annotated[int, typer.Option(help="Maximum time in seconds until a request is answered.")] = 60,
) -> None:
    """Serve a web page that shows the labels and trees of a text, and how the trees were built.

    Only this machine can reach the server, unless --host and --public are given. Ctrl-C stops it. The page needs no
    internet connection. Programs can use /api/parse, which is documented at /docs.
    """
    require("web", "serve")
    if not 0 <= port <= _LAST_PORT:
        raise ValueError(f"port is {port}: it must be between 0 and {_LAST_PORT:,}")
    counts = {"tokens": max_tokens, "characters": max_characters, "waiting": max_waiting, "seconds": max_seconds}
    for name, value in counts.items():
        check_integer(f"max-{name}", value, at_least=1)
    place = find_device(device)
    # Bind before loading the models, so that a port in use is reported at once.
    with _listening(host, port, public) as listener:
        from beamtree.models import pretrained
        from beamtree.web.app import create_app
        from beamtree.web.worker import Limits

        address, limits = _address(host, listener), Limits(**counts)
        if public:
            typer.echo(_proxy_example(address, [*allow_host, _EXAMPLE_NAME][0], limits), err=True)
        names = list(dict.fromkeys(models)) or sorted(pretrained.shipped(), key=lambda name: name != _FIRST)
        if not names:
            raise ValueError("this version of beamtree has no shipped models: give the folder of a run")
        loaded = {name: pretrained.load(name, place) for name in names}
        app = create_app(loaded, limits, hosts=["localhost", host, socket.gethostname(), *allow_host])
        _run(app, listener, address, names, opened)
    if any(worker.busy for worker in app.state.workers):
        # A thread inside PyTorch cannot be stopped, and would crash the interpreter at a normal exit.
        sys.stdout.flush()
        os._exit(0)


def _listening(host: str, port: int, public: bool) -> socket.socket:
    """Open a listening socket. Unless `public`, raises a `ValueError` for an address that other machines can reach."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else "not a host name"
        raise ValueError(f"host is {host!r}, which cannot be found ({reason}): try 127.0.0.1") from None
    if not public and not ipaddress.ip_address(place[0]).is_loopback:
        raise ValueError(
            f"host is {host!r}, which other machines can reach, but beamtree has no authentication: add --public, "
            "which prints how to add it, or use 127.0.0.1"
        )
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a stopped server can be restarted at once
    try:
        listener.bind(place)
        listener.listen()
    except OSError as error:
        listener.close()
        raise ValueError(
            f"cannot listen on port {port} of {host} ({error.strerror}): choose another with --port, or 0 for any"
        ) from None
    return listener


def _address(host: str, listener: socket.socket) -> str:
    """The URL for a browser on this machine, also if the server listens on all addresses."""
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{local}]' if ':' in local else local}:{listener.getsockname()[1]}"


def _proxy_example(address: str, name: str, limits: "Limits") -> str:
    """Instructions for a reverse proxy in front of the server, under this host name."""
    return _PROXY.format(
        address=address,
        name=name,
        max_bytes=limits.bytes,
        body_seconds=limits.body_seconds,
        seconds=limits.seconds + limits.body_seconds,
    )


def _run(app: Any, listener: socket.socket, address: str, names: list[str], opened: bool) -> None:
    """Serve until Ctrl-C."""
    import uvicorn

    from beamtree.web.protocol import server_config

    class Server(uvicorn.Server):
        """Server that prints its address when it is ready, and refuses waiting requests when it is stopped."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            typer.echo(f"{', '.join(names)} at {address} (press Ctrl-C to stop)")
            sys.stdout.flush()
            if opened:
                webbrowser.open(address)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for worker in app.state.workers:
                worker.stop()
            await super().shutdown(sockets)

    try:
        Server(server_config(app)).run([listener])
    except KeyboardInterrupt:
        return
