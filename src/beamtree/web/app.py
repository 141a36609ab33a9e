"""The server of the page and of its JSON interface.

GET  /               the page
GET  /api/models     the models, and the limits of a request
POST /api/parse      {"model": …, "text": …, "second": …} → the document that `beamtree parse --json` prints
GET  /docs           the interface described for people, made from /openapi.json

A client chooses among the models that the server was started with; no name that it sends becomes a path.
"""

from collections.abc import Collection, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from beamtree import __version__
from beamtree.models.pretrained import Pretrained
from beamtree.utils.checks import unknown
from beamtree.web import SCRIPTS, STYLE, read
from beamtree.web.guard import Guard
from beamtree.web.schemas import Document, LimitsInfo, ModelInfo, Models, ParseRequest, Problem
from beamtree.web.worker import Busy, Limits, TooLong, TooSlow, Worker

# What a person may try first, by how the task's name begins.
EXAMPLES: dict[str, list[str]] = {
    "listops": ["[MAX 2 9 [MIN 4 7 ] 0 ]"],
    "logic": ["( a ( and b ) )", "( a ( or ( not c ) ) )"],
}
SENTENCES = ["the film is not as good as the book it was made from", "the book is better than the film"]
_FILES = {
    "/": ("page.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"/{name}": (name, "text/css" if name == STYLE else "text/javascript") for name in (STYLE, *SCRIPTS, "docs.js")},
}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    413: {"model": Problem, "description": "The text is too long."},
    415: {"model": Problem, "description": "The request is not JSON."},
    422: {"model": Problem, "description": "The request is wrong: no such model, an unknown token, an empty text."},
    503: {"model": Problem, "description": "Too many requests wait already."},
    504: {"model": Problem, "description": "The answer was not there in time."},
}


def create_app(
    models: Mapping[str, Pretrained], limits: Limits | None = None, hosts: Collection[str] = ("localhost",)
) -> FastAPI:
    """The application over these models, by the names that clients choose from.

    hosts: the names under which the server may be reached, besides addresses.
    """
    if not models:
        raise ValueError("there is no model to serve: give at least one")
    limits = limits or Limits()
    workers = {name: Worker(name, model, limits) for name, model in models.items()}
    app = FastAPI(
        title="beamtree",
        version=__version__,
        description="What models read in a text: their label, and the trees of their beams.",
        docs_url=None,  # FastAPI's own page loads its scripts from elsewhere
        redoc_url=None,
        exception_handlers={
            HTTPException: _refuse,
            RequestValidationError: _explain,
            TooLong: _answer_with(413),
            ValueError: _answer_with(422),
            Busy: _answer_with(503),
            TooSlow: _answer_with(504),
        },
    )
    app.add_middleware(Guard, hosts=hosts, most_bytes=limits.bytes)
    app.state.workers = list(workers.values())
    for path, (name, kind) in _FILES.items():
        _add_file(app, path, read(name), kind)

    @app.get("/api/models", summary="The models of the server, and the limits of a request")
    async def list_models() -> Models:
        described = [_described(name, worker.model) for name, worker in workers.items()]
        return Models(models=described, limits=LimitsInfo.of(limits))

    @app.post(
        "/api/parse",
        summary="What a model says of a text",
        response_model=Document,
        responses=_PROBLEMS,
        description=f"At most {limits.characters:,} characters and {limits.tokens:,} tokens a text, one text (or pair) "
        f"a request, {limits.waiting:,} requests waiting a model, {limits.seconds:,} seconds until the answer.",
    )
    async def parse(asked: ParseRequest) -> Response:
        worker = workers.get(asked.model)
        if worker is None:
            raise ValueError(unknown("model", asked.model[:100], workers))
        if asked.second and not worker.model.config.pair:
            raise ValueError(f"{asked.model} reads single texts: leave out 'second'")
        sides = [asked.text, asked.second] if asked.second else [asked.text]
        return Response(await worker.answer(sides), media_type="application/json")

    return app


def _add_file(app: FastAPI, path: str, content: str, kind: str) -> None:
    async def serve() -> Response:
        return Response(content, media_type=kind)

    app.add_api_route(path, serve, methods=["GET", "HEAD"], include_in_schema=False)


def _described(name: str, model: Pretrained) -> ModelInfo:
    config = model.config
    task = config.task
    example = next((texts for start, texts in EXAMPLES.items() if task.startswith(start)), SENTENCES)
    return ModelInfo(
        name=name,
        encoder=config.encoder,
        task=task,
        pair=config.pair,
        labels=list(config.labels),
        example=example[: 2 if config.pair else 1],
    )


def _answer_with(status: int) -> Any:
    """A handler that tells what went wrong as JSON."""

    async def handle(request: Request, error: Exception) -> Response:
        headers = {"Retry-After": "1"} if status == 503 else None
        return JSONResponse({"error": str(error)}, status, headers)

    return handle


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _explain(request: Request, error: Exception) -> Response:
    """The first thing that is wrong with the request's body, in a sentence."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:] if isinstance(part, str)) or "the request's body"
    return JSONResponse({"error": f"{where}: {first['msg']}"}, 422)
