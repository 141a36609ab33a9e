"""A thread for each model, which answers one text after the other while the server goes on listening."""

import asyncio
import json
import queue
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread

from beamtree.answers import answers, as_json
from beamtree.pretrained import Pretrained, tokens_of
from beamtree.utils.checks import check_integer


@dataclass(frozen=True)
class Limits:
    """What one request may ask for. Beyond it a client is refused at once, never left waiting."""

    characters: int = 20_000  # of a text
    tokens: int = 2_000  # of a text
    waiting: int = 256  # requests in the queue of a model
    seconds: int = 60  # from a request's arrival to its answer

    def __post_init__(self) -> None:
        for name in ("characters", "tokens", "waiting", "seconds"):
            check_integer(name, getattr(self, name), at_least=1)

    @property
    def bytes(self) -> int:
        """Of a request: two texts, whose characters JSON may spell with twelve bytes each, and what is around them."""
        return 2 * 12 * self.characters + 4096


class TooLong(ValueError):
    """The text is longer than the server takes."""


class Busy(Exception):
    """Too many requests wait already."""


class TooSlow(Exception):
    """The answer was not there in time."""


class Worker:
    """Answers for one model. What waits past its deadline is dropped, so that a slow text cannot hold up others twice.

    A text that is being read when its time is up is read to its end, since nothing can stop it; those behind it wait.
    """

    def __init__(self, name: str, model: Pretrained, limits: Limits) -> None:
        self.name, self.model, self.limits = name, model, limits
        self.busy = False
        self._stopping = False
        self._asked: set[asyncio.Future[bytes]] = set()
        self._waiting: queue.Queue[tuple[str, Future[bytes]]] = queue.Queue(limits.waiting)
        # A daemon: the program can end while a text is being read.
        Thread(target=self._work, name=f"model {name}", daemon=True).start()

    async def answer(self, sides: Sequence[str]) -> bytes:
        """The document of a text, or of the two of a pair, as JSON."""
        future: Future[bytes] = Future()
        for side in sides:
            # The cheap limit first: tokens are counted only in a text that is not absurdly long.
            if len(side) > self.limits.characters:
                raise TooLong(f"the text has {len(side):,} characters: {self.limits.characters:,} are the most")
            if not side.isascii() and any("\ud800" <= character <= "\udfff" for character in side):
                raise ValueError("the text holds half of a surrogate pair, which is no character: leave it out")
        # A tab stands between the sides of a pair, so within one it becomes the space that it means.
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
        """Refuse all who still wait."""
        self._stopping = True
        for asked in list(self._asked):
            asked.cancel()

    def _work(self) -> None:
        while True:
            text, future = self._waiting.get()
            if not future.set_running_or_notify_cancel():
                continue  # whoever asked has been told that it took too long
            self.busy = True
            try:
                future.set_result(self._document(text))
            except Exception as error:
                future.set_exception(error)
            finally:
                self.busy = False

    def _document(self, text: str) -> bytes:
        for side in text.split("\t") if self.model.config.pair else [text]:
            count = len(tokens_of(side, self.model.config, self.model.vocabulary))
            if count > self.limits.tokens:
                raise TooLong(f"the text has {count:,} tokens: {self.limits.tokens:,} are the most")
        (answer,) = answers(self.model, [text])
        return json.dumps(as_json(answer, self.name), ensure_ascii=False, allow_nan=False).encode()
