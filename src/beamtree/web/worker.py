"""One thread per model, which answers requests one at a time while the server accepts more."""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any

from beamtree.models.answers import answers, as_json
from beamtree.models.pretrained import Pretrained
from beamtree.models.tokens import tokenizer_of
from beamtree.utils.checks import check_integer
from beamtree.utils.interrupts import interruptible
from beamtree.web.errors import Busy, InternalError, RequestError, TooLong, TooSlow

INTERVAL = 0.5  # seconds between two reports of progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Limits of a request, and of all requests together. A request that exceeds a limit is refused at once."""

    characters: int = 20_000  # per text
    tokens: int = 2_000  # per text
    waiting: int = 256  # requests in the queue of a model
    seconds: int = 60  # from the arrival of a request to its answer
    body_seconds: int = 4  # from the first byte of a request to its last
    requests: int = 384  # answered at the same time; more than `waiting`, so that one model cannot block the others

    def __post_init__(self) -> None:
        for name in ("characters", "tokens", "waiting", "seconds", "body_seconds", "requests"):
            check_integer(name, getattr(self, name), at_least=1)

    @property
    def bytes(self) -> int:
        """Maximum size of a request: two texts with up to 12 bytes of JSON per character, and the rest of the body."""
        return 2 * 12 * self.characters + 4096

    @property
    def connections(self) -> int:
        """Maximum number of open connections: twice that of requests, so that slow clients do not block others."""
        return 2 * self.requests


class Cancelled(Exception):
    """Raised to stop a request whose answer is no longer needed."""


class ParseJob:
    """A request for the document of a text, and its result. Must be created inside an event loop."""

    def __init__(self, text: str, seconds: int) -> None:
        self.text = text
        self.deadline = time.monotonic() + seconds
        self.started: float | None = None
        self.cancelled = False
        self.future: Future[bytes] = Future()  # set by the thread of the worker
        self.document = asyncio.wrap_future(self.future)  # the same future for the event loop
        # Retrieve an exception even if the client has disconnected: otherwise asyncio would log it.
        self.document.add_done_callback(lambda document: document.cancelled() or document.exception())

    def check(self) -> None:
        """Raise `Cancelled` if the request was cancelled."""
        if self.cancelled:
            raise Cancelled


class Worker:
    """Answers the requests for one model in the order of their arrival.

        job = worker.submit(["[MAX 2 9 ]"])
        async for event in worker.progress(job): …
        document = await worker.result(job)

    A request is cancelled when its client disconnects or its deadline has passed. A waiting request is then removed
    from the queue. A running request is stopped between two stages (validation, model, document, JSON), and on a CPU
    also at the next step of the forward pass. On a GPU, a forward pass takes milliseconds and is not interrupted.
    """

    def __init__(self, name: str, model: Pretrained, limits: Limits) -> None:
        self.name, self.model, self.limits = name, model, limits
        self.busy = False
        self._stopping = False
        self._waiting: deque[ParseJob] = deque()
        self._running: ParseJob | None = None
        self._changed = Condition()  # guards the attributes above and the state of all jobs
        # A daemon thread, so that the program can exit while a text is being processed.
        Thread(target=self._work, name=f"model {name}", daemon=True).start()

    def submit(self, sides: Sequence[str]) -> ParseJob:
        """Add a request for a text, or for the two texts of a pair, to the queue."""
        for side in sides:
            # Characters are checked first because it is cheap; tokens are counted later.
            if len(side) > self.limits.characters:
                raise TooLong(f"the text has {len(side):,} characters: the maximum is {self.limits.characters:,}")
            if not side.isascii() and any("\ud800" <= character <= "\udfff" for character in side):
                raise RequestError(
                    "the text contains half of a surrogate pair, which is not a valid character: remove it"
                )
        # A tab separates the sides of a pair, so a tab inside a side becomes a space.
        text = "\t".join(side.replace("\t", " ") for side in sides) if self.model.config.pair else sides[0]
        with self._changed:
            if self._stopping:
                raise _stopped()
            if len(self._waiting) >= self.limits.waiting:
                raise Busy(f"{self.limits.waiting} requests are already waiting for {self.name}: try again in a moment")
            job = ParseJob(text, self.limits.seconds)
            self._waiting.append(job)
            self._changed.notify()
        return job

    async def result(self, job: ParseJob) -> bytes:
        """Await the document as JSON. Raises `TooSlow` at the deadline of the job. Cancelling this cancels the job."""
        try:
            await asyncio.wait({job.document}, timeout=job.deadline - time.monotonic())
        finally:
            self.cancel(job)
        if not job.document.done():
            raise TooSlow(
                f"{self.name} did not answer within {self.limits.seconds} seconds: use a shorter text, "
                "or try again when the server is less busy"
            )
        return job.document.result()

    async def progress(self, job: ParseJob) -> AsyncIterator[dict[str, Any]]:
        """Yield the state of the job, now and every `INTERVAL` seconds until it is done or its deadline has passed.

        {"event": "queued", "position": 3}      1 is the next in the queue
        {"event": "running", "seconds": 1.2}    time since the start of the job
        """
        while not job.document.done() and (left := job.deadline - time.monotonic()) > 0:
            yield self._state(job)
            await asyncio.wait({job.document}, timeout=min(INTERVAL, left))

    def cancel(self, job: ParseJob) -> None:
        """Remove the job from the queue, or stop it at the next check. No effect on a finished job."""
        with self._changed:
            job.cancelled = True
            if job in self._waiting:
                self._waiting.remove(job)

    def stop(self) -> None:
        """Refuse all unanswered requests, and all later ones."""
        with self._changed:
            self._stopping = True
            jobs = [*self._waiting, *([self._running] if self._running else [])]
            self._waiting.clear()
            for job in jobs:
                if not job.cancelled:
                    job.cancelled = True
                    job.future.set_exception(_stopped())

    def _state(self, job: ParseJob) -> dict[str, Any]:
        with self._changed:
            if job in self._waiting:
                return {"event": "queued", "position": self._waiting.index(job) + 1}
            started = time.monotonic() if job.started is None else job.started
            return {"event": "running", "seconds": round(time.monotonic() - started, 1)}

    def _work(self) -> None:
        while True:
            job = self._next()
            outcome: bytes | RequestError | None = None
            try:
                outcome = self._document(job.text, job.check)
            except Cancelled:
                pass
            except RequestError as error:
                outcome = error
            except Exception:
                logger.exception("the model %s failed", self.name)
                outcome = InternalError()
            self._finish(job, outcome)

    def _next(self) -> ParseJob:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            self._running = job = self._waiting.popleft()
            job.started = time.monotonic()
            self.busy = True
            return job

    def _finish(self, job: ParseJob, outcome: bytes | RequestError | None) -> None:
        with self._changed:
            self._running, self.busy = None, False
            if job.cancelled or outcome is None:
                return
            if isinstance(outcome, RequestError):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)

    def _document(self, text: str, check: Callable[[], None] = lambda: None) -> bytes:
        """Create the document of a text.

        `check` is called between stages and at the steps of the forward pass. It can raise an exception to stop the
        work.
        """
        check()
        self._validate(text.split("\t") if self.model.config.pair else [text])
        check()
        with interruptible(check):
            (answer,) = answers(self.model, [text], labels=True)
        check()
        document = as_json(answer, self.name)
        check()
        return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()

    def _validate(self, sides: Sequence[str]) -> None:
        """Raise a `RequestError` for a text that the model does not accept. Later exceptions are internal errors."""
        tokenizer = tokenizer_of(self.model.config, self.model.vocabulary, self.model.tokenizer)
        for side in sides:
            count = len(tokenizer.words(side))
            if count > self.limits.tokens:
                raise TooLong(f"the text has {count:,} tokens: the maximum is {self.limits.tokens:,}")
        try:
            self.model.check(*sides)
        except ValueError as error:
            raise RequestError(str(error)) from None


def check_model(name: str, model: Pretrained) -> None:
    """Raise a `ValueError` if the model cannot answer requests; see `Pretrained.check_parsing`."""
    try:
        model.check_parsing()
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _stopped() -> Busy:
    return Busy("the server is being stopped")
