"""The server of the page and its JSON API.

GET  /               the page
GET  /api/models     the models, and the limits of a request
POST /api/parse      {"model": …, "text": …, "second": …} → the document that `beamtree parse --json` prints;
                     with "Accept: application/x-ndjson", one line of JSON per event; see `ProgressResponse`
POST /api/draw       the same with "format": "svg", "png", "pdf" or "tex" and "beam": … → a drawing of one tree
GET  /docs           the documentation of the API, generated from /openapi.json

A client chooses one of the models that the server was started with; names in a request are never used as paths. When a
client disconnects, its request is cancelled; see `beamtree.web.worker.Worker`.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from beamtree import __version__
from beamtree.models.pretrained import Pretrained
from beamtree.utils.checks import unknown
from beamtree.web import SCRIPTS, STYLES, read
from beamtree.web.draw import MEDIA_TYPES, DrawRequest, draw
from beamtree.web.errors import RequestError
from beamtree.web.guard import Guard
from beamtree.web.progress import JSON_LINES, ProgressResponse, accepts_lines, unless_disconnected
from beamtree.web.schemas import Document, LimitsInfo, ModelInfo, Models, ParseRequest, Problem
from beamtree.web.worker import Limits, ParseJob, Worker, check_model

# Example texts, or pairs of texts, by prefix of the name of the task.
EXAMPLES: dict[str, list[list[str]]] = {
    "listops": [
        ["[MAX 2 9 [MIN 4 7 ] 0 ]"],
        ["[SM 7 [MED 3 9 [MAX 1 5 ] 6 ] [MIN 8 2 ] 4 ]"],
        ["[MED 1 2 2 0 3 3 4 4 4 8 ]"],  # twice as many arguments as in training
    ],
    "logic": [
        ["( a ( and b ) )", "( a ( or ( not c ) ) )"],
        ["( not ( a ( or b ) ) )", "( ( not a ) ( and ( not b ) ) )"],
    ],
}
SENTENCES = [
    "the film is not as good as the book it was made from",
    "It is not a bad film, but the ending is dull.",
    "a charming, funny and surprisingly tender comedy",
]
PAIRS = [["the film is better than the book", "the book is better than the film"]]
_FILES = {
    "/": ("page.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"/{name}": (name, "text/css") for name in STYLES},
    **{f"/{name}": (name, "text/javascript") for name in (*SCRIPTS, "docs.js")},
}
_LINES = '{"event": "queued", "position": 1}\n{"event": "running", "seconds": 0.5}\n{"event": "done", "document": {}}\n'
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    408: {"model": Problem, "description": "The request was not received completely in time."},
    413: {"model": Problem, "description": "The text is too long."},
    415: {"model": Problem, "description": "The request is not JSON."},
    422: {
        "model": Problem,
        "description": "The request is invalid: an unknown model, an unknown token or an empty text.",
    },
    500: {"model": Problem, "description": "An internal error; see the log of the server."},
    503: {"model": Problem, "description": "Too many requests are waiting."},
    504: {"model": Problem, "description": "The model did not answer in time."},
}


def create_app(
    models: Mapping[str, Pretrained], limits: Limits | None = None, hosts: Collection[str] = ("localhost",)
) -> FastAPI:
    """Create the application.

    Args:
        models: the models by the names that clients use.
        limits: limits of requests.
        hosts: host names that requests may use, besides IP addresses.
    """
    if not models:
        raise ValueError("there are no models to serve: give at least one")
    limits = limits or Limits()
    for name, model in models.items():
        check_model(name, model)
    workers = {name: Worker(name, model, limits) for name, model in models.items()}
    app = FastAPI(
        title="beamtree",
        version=__version__,
        description="Labels and trees that models predict for a text.",
        docs_url=None,  # FastAPI's page loads its scripts from the internet
        redoc_url=None,
        exception_handlers={HTTPException: _refuse, RequestValidationError: _explain},
    )
    app.add_middleware(
        Guard,
        hosts=hosts,
        max_bytes=limits.bytes,
        max_requests=limits.requests,
        body_seconds=limits.body_seconds,
    )
    app.state.workers, app.state.limits = list(workers.values()), limits
    for path, (name, kind) in _FILES.items():
        _add_file(app, path, read(name), kind)

    @app.get("/api/models", summary="The models of the server and the limits of a request")
    async def list_models() -> Models:
        described = [_described(name, worker.model) for name, worker in workers.items()]
        return Models(models=described, limits=LimitsInfo.of(limits))

    @app.post(
        "/api/parse",
        summary="The label and the trees of a text",
        response_model=Document,
        responses={200: {"content": {JSON_LINES: {"example": _LINES}}}, **_PROBLEMS},
        description=f"One text or pair per request. At most {limits.characters:,} characters and {limits.tokens:,} "
        f"tokens per text, {limits.waiting:,} waiting requests per model, and {limits.seconds:,} seconds per answer. "
        f"With the header 'Accept: {JSON_LINES}', the answer is one line of JSON per event: 'queued' with the position "
        "in the queue, 'running' with the seconds so far, and finally 'done' with the document, or 'error' with the "
        "message and the status.",
    )
    async def parse(asked: ParseRequest, request: Request) -> Response:
        worker, job = _submit(asked, workers)
        if accepts_lines(request):
            return ProgressResponse(worker, job)
        return Response(await unless_disconnected(request.receive, worker.result(job)), media_type="application/json")

    @app.post(
        "/api/draw",
        summary="A tree as a file: SVG, PNG, PDF or LaTeX",
        response_class=Response,
        responses={
            200: {"content": {kind: {} for kind in MEDIA_TYPES.values()}, "description": "The file."},
            **_PROBLEMS,
        },
    )
    async def draw_file(asked: DrawRequest, request: Request) -> Response:
        worker, job = _submit(asked, workers)

        async def drawn() -> bytes:
            return await asyncio.to_thread(draw, await worker.result(job), asked)

        return Response(await unless_disconnected(request.receive, drawn()), media_type=MEDIA_TYPES[asked.format])

    return app


def _submit(asked: ParseRequest, workers: Mapping[str, Worker]) -> tuple[Worker, ParseJob]:
    """Add the request to the queue of its model."""
    worker = workers.get(asked.model)
    if worker is None:
        raise RequestError(unknown("model", asked.model[:100], workers))
    if asked.second and not worker.model.config.pair:
        raise RequestError(f"{asked.model} takes single texts, not pairs: leave out 'second'")
    return worker, worker.submit([asked.text, asked.second] if asked.second else [asked.text])


def _add_file(app: FastAPI, path: str, content: str, kind: str) -> None:
    async def serve() -> Response:
        return Response(content, media_type=kind)

    app.add_api_route(path, serve, methods=["GET", "HEAD"], include_in_schema=False)


def _described(name: str, model: Pretrained) -> ModelInfo:
    config = model.config
    task = config.task
    others = PAIRS if config.pair else [[text] for text in SENTENCES]
    examples = next((texts for start, texts in EXAMPLES.items() if task.startswith(start)), others)
    return ModelInfo(
        name=name,
        encoder=config.encoder,
        task=task,
        pair=config.pair,
        labels=list(config.labels),
        example=examples[0],
        examples=examples,
    )


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _explain(request: Request, error: Exception) -> Response:
    """Report the first error in the body of a request as one sentence."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:] if isinstance(part, str)) or "the body of the request"
    return JSONResponse({"error": f"{where}: {first['msg']}"}, 422)
