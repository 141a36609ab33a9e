"""The shapes of what the interface takes and gives, as its description (/openapi.json) tells them."""

from pydantic import BaseModel, ConfigDict, Field

from beamtree.web.worker import Limits


class ParseRequest(BaseModel):
    """One text, or the two of a pair, for one of the server's models."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(description="One of the names that /api/models gives.", max_length=1000)
    text: str = Field(description="A sentence or an expression.", examples=["[MAX 2 9 [MIN 4 7 ] 0 ]"])
    second: str | None = Field(None, description="The second text, for a model of pairs; without it there is no label.")


class Beam(BaseModel):
    """A tree; beams that reached the same one are together."""

    probability: float
    tree: str = Field(description="With brackets; -LRB- and -RRB- stand for ( and ).", examples=["((a b) c)"])
    merges: list[list[int]] = Field(description="Constituents [start, end) in the order in which they were made.")


class SideDocument(BaseModel):
    """One of the two texts of a pair, or the only one."""

    text: str
    tokens: list[str]
    beams: list[Beam] = Field(description="Best first.")
    chart: list[list[float]] = Field(description="[start, end, probability] of every constituent of any beam.")


class Document(BaseModel):
    """What a model says of a text."""

    model: str
    text: str = Field(description="As it was given; a pair has a tab in it.")
    label: str | None
    probabilities: dict[str, float] = Field(description="Of all labels.")
    unknown: list[str] = Field(description="Words that the model does not know: it reads them all as one.")
    sides: list[SideDocument]


class ModelInfo(BaseModel):
    """A model of the server."""

    name: str
    encoder: str
    task: str
    pair: bool = Field(description="Whether it reads two texts.")
    labels: list[str]
    example: list[str] = Field(description="A text to try, or two for a model of pairs.")


class LimitsInfo(BaseModel):
    """What a request may ask for."""

    characters: int = Field(description="Of a text.")
    tokens: int = Field(description="Of a text.")
    waiting: int = Field(description="Requests in the queue of a model.")
    seconds: int = Field(description="Until the answer.")

    @classmethod
    def of(cls, limits: Limits) -> "LimitsInfo":
        return cls(characters=limits.characters, tokens=limits.tokens, waiting=limits.waiting, seconds=limits.seconds)


class Models(BaseModel):
    """What the server was started with."""

    models: list[ModelInfo]
    limits: LimitsInfo


class Problem(BaseModel):
    """Why there is no answer, in a sentence."""

    error: str
