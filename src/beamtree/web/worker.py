"""One thread per model, which answers one text after the other while the server keeps accepting requests."""

import asyncio
import json
import queue
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread

from beamtree.models.answers import answers, as_json
from beamtree.models.pretrained import Pretrained
from beamtree.models.tokens import tokenizer_of
from beamtree.utils.checks import check_integer


@dataclass(frozen=True)
class Limits:
    """Limits of one request. A request that exceeds one is refused at once."""

    characters: int = 20_000  # of a text
    tokens: int = 2_000  # of a text
    waiting: int = 256  # requests in the queue of a model
    seconds: int = 60  # from a request's arrival to its answer

    def __post_init__(self) -> None:
        for name in ("characters", "tokens", "waiting", "seconds"):
            check_integer(name, getattr(self, name), at_least=1)

    @property
    def bytes(self) -> int:
        """The largest request: two texts, with up to twelve bytes of JSON per character, and the rest of the body."""
        return 2 * 12 * self.characters + 4096


class TooLong(ValueError):
    """The text is longer than the server allows."""


class Busy(Exception):
    """Too many requests are waiting."""


class TooSlow(Exception):
    """The answer was not ready in time."""


class Worker:
    """Answers the requests for one model. Requests that wait past their deadline are dropped.

    A text that is being processed at its deadline is processed to its end, as a thread cannot be stopped; the requests
    behind it wait.
    """

    def __init__(self, name: str, model: Pretrained, limits: Limits) -> None:
        self.name, self.model, self.limits = name, model, limits
        self.busy = False
        self._stopping = False
        self._asked: set[asyncio.Future[bytes]] = set()
        self._waiting: queue.Queue[tuple[str, Future[bytes]]] = queue.Queue(limits.waiting)
        # A daemon thread: the program can exit while a text is being processed.
        Thread(target=self._work, name=f"model {name}", daemon=True).start()

    async def answer(self, sides: Sequence[str]) -> bytes:
        """The document of a text, or of the two texts of a pair, as JSON."""
        future: Future[bytes] = Future()
        for side in sides:
            # The cheap limit first: tokens are counted only in texts of a reasonable length.
            if len(side) > self.limits.characters:
                raise TooLong(f"the text has {len(side):,} characters: {self.limits.characters:,} are the most")
            if not side.isascii() and any("\ud800" <= character <= "\udfff" for character in side):
                raise ValueError("the text holds half of a surrogate pair, which is no character: leave it out")
        # A tab separates the sides of a pair, so a tab inside a side becomes a space.
        text = "\t".join(side.replace("\t", " ") for side in sides) if self.model.config.pair else sides[0]
        try:
            self._waiting.put_nowait((text, future))
        except queue.Full:
            raise Busy(f"{self.limits.waiting} requests wait for {self.name} already: try again in a moment") from None
        asked = asyncio.wrap_future(future)
        self._asked.add(asked)
        try:
            return await asyncio.wait_for(asked, self.limits.seconds)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            raise Busy("the server is being stopped") from None
        except TimeoutError:
            raise TooSlow(
                f"{self.name} has not answered within {self.limits.seconds} seconds: give it a shorter text, "
                "or try again when it has less to do"
            ) from None
        finally:
            self._asked.discard(asked)

    def stop(self) -> None:
        """Refuse all waiting requests."""
        self._stopping = True
        for asked in list(self._asked):
            asked.cancel()

    def _work(self) -> None:
        while True:
            text, future = self._waiting.get()
            if not future.set_running_or_notify_cancel():
                continue  # the request has timed out
            self.busy = True
            try:
                future.set_result(self._document(text))
            except Exception as error:
                future.set_exception(error)
            finally:
                self.busy = False

    def _document(self, text: str) -> bytes:
        tokenizer = tokenizer_of(self.model.config, self.model.vocabulary, self.model.tokenizer)
        for side in text.split("\t") if self.model.config.pair else [text]:
            count = len(tokenizer.words(side))
            if count > self.limits.tokens:
                raise TooLong(f"the text has {count:,} tokens: {self.limits.tokens:,} are the most")
        (answer,) = answers(self.model, [text])
        return json.dumps(as_json(answer, self.name), ensure_ascii=False, allow_nan=False).encode()
