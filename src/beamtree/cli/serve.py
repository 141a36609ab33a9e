"""`beamtree serve`: the page that shows what models read in a text, and its JSON interface."""

# ruff: noqa: B006 (typer takes the default of a repeatable argument as a list, which is never changed)

# Imports of PyTorch are inside functions: help must not wait for them.
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
    "Examples: the models that come with beamtree; two runs to compare, on another port; behind a reverse proxy\n\n"
    "  beamtree serve --open\n\n"
    "  beamtree serve runs/listops/bt-grc-seed0 runs/listops/bt-grc-onesoft-seed0 --port 8080\n\n"
    "  beamtree serve --public --allow-host trees.example.org"
)
_LAST_PORT = 65_535
_EXAMPLE_NAME = "trees.example.org"
_PROXY = """\
beamtree itself has neither encryption nor authentication. Put a reverse proxy in front of it that terminates TLS and
authenticates users, and let nothing but the proxy reach {address}. With nginx, for example:

    limit_conn_zone $binary_remote_addr zone=beamtree:1m;
    server {{
        listen 443 ssl;
        server_name {name};
        ssl_certificate /etc/ssl/{name}.pem;
        ssl_certificate_key /etc/ssl/{name}.key;
        auth_basic beamtree;
        auth_basic_user_file /etc/nginx/beamtree.htpasswd;  # written by the command htpasswd
        limit_conn beamtree 50;
        client_max_body_size {most_bytes};
        client_body_timeout {body_seconds}s;
        location / {{
            proxy_pass {address};
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_buffering off;  # pass on the progress of long requests
            proxy_read_timeout {seconds}s;
        }}
    }}

Start beamtree with --allow-host {name}: it refuses requests whose Host it does not know. If the proxy runs on this
machine, leave out --host: then no other machine can avoid the proxy."""


def serve_command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Runs' folders, shipped models, or hub ids.",
            show_default="all shipped models",
        ),
    ] = [],
    host: Annotated[
        str, typer.Option(help="Address to listen on. One that other machines can reach needs --public.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any that is free.")] = 8000,
    opened: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to run the models.")] = "auto",
    public: Annotated[
        bool,
        typer.Option(
            "--public", help="Allow addresses that other machines can reach, and print what to put in front: TLS, auth."
        ),
    ] = False,
    allow_host: Annotated[
        list[str],
        typer.Option(help="Host name that requests may use, besides addresses and localhost; repeatable."),
    ] = [],
    max_tokens: Annotated[int, typer.Option(help="Maximum number of tokens of a text.")] = 2_000,
    max_characters: Annotated[int, typer.Option(help="Maximum number of characters of a text.")] = 20_000,
    max_waiting: Annotated[int, typer.Option(help="Maximum number of requests that wait for a model.")] = 256,
    max_seconds: Annotated[int, typer.Option(help="Maximum time in seconds until a request is answered.")] = 60,
) -> None:
    """Serve a page that shows what models read in a text: label, trees, and how they were built.

    Only this machine reaches it, unless --host and --public say otherwise. Ctrl-C ends it. The page works without the
    internet; programs use /api/parse, which /docs describes.
    """
    require("web", "serve")
    if not 0 <= port <= _LAST_PORT:
        raise ValueError(f"port is {port}: it must be between 0 and {_LAST_PORT:,}")
    counts = {"tokens": max_tokens, "characters": max_characters, "waiting": max_waiting, "seconds": max_seconds}
    for name, value in counts.items():
        check_integer(f"max-{name}", value, at_least=1)
    place = find_device(device)
    # Bind before loading the models, to report a port that is in use at once.
    with _listening(host, port, public) as listener:
        from beamtree.models import pretrained
        from beamtree.web.app import create_app
        from beamtree.web.worker import Limits

        address, limits = _address(host, listener), Limits(**counts)
        if public:
            typer.echo(_proxy_example(address, [*allow_host, _EXAMPLE_NAME][0], limits), err=True)
        names = list(dict.fromkeys(models)) or pretrained.shipped()
        if not names:
            raise ValueError("no model comes with this version of beamtree: give the folder of a run")
        loaded = {name: pretrained.load(name, place) for name in names}
        app = create_app(loaded, limits, hosts=["localhost", host, socket.gethostname(), *allow_host])
        _run(app, listener, address, names, opened)
    if any(worker.busy for worker in app.state.workers):
        # A thread inside of PyTorch cannot be told to stop, and would crash the interpreter's own, orderly end.
        sys.stdout.flush()
        os._exit(0)


def _listening(host: str, port: int, public: bool) -> socket.socket:
    """A socket that holds the port. Addresses that other machines can reach are refused unless `public`."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else "no name of a machine"
        raise ValueError(f"host is {host!r}, which cannot be found ({reason}): try 127.0.0.1") from None
    if not public and not ipaddress.ip_address(place[0]).is_loopback:
        raise ValueError(
            f"host is {host!r}, which other machines can reach, and beamtree has no authentication: add --public, "
            "which says what to put in front of it, or use 127.0.0.1"
        )
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that has just ended is no obstacle
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
    """What to type into a browser; a server on all addresses is reached here by this machine's own."""
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{own}]' if ':' in own else own}:{listener.getsockname()[1]}"


def _proxy_example(address: str, name: str, limits: "Limits") -> str:
    """What to put in front of a server that is reached under this name."""
    return _PROXY.format(
        address=address,
        name=name,
        most_bytes=limits.bytes,
        body_seconds=limits.body_seconds,
        seconds=limits.seconds + limits.body_seconds,
    )


def _run(app: Any, listener: socket.socket, address: str, names: list[str], opened: bool) -> None:
    """Serve until Ctrl-C, which is how it is meant to end."""
    import uvicorn

    from beamtree.web.protocol import server_config

    class Server(uvicorn.Server):
        """Tells its address once it answers; when it ends, nobody is left waiting."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            typer.echo(f"{', '.join(names)} at {address} (Ctrl-C ends it)")
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
