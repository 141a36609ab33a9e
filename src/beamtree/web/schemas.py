"""The shapes of what the interface takes and gives, as its description (/openapi.json) tells them."""

from pydantic import BaseModel, ConfigDict, Field

from beamtree.web.worker import Limits


class ParseRequest(BaseModel):
    """One text, or the two of a pair, for one of the server's models."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(description="One of the names that /api/models gives.", max_length=1000)
    text: str = Field(description="A sentence or an expression.", examples=["[MAX 2 9 [MIN 4 7 ] 0 ]"])
    second: str | None = Field(None, description="The second text, for a model of pairs; without it there is no label.")


class ConstituentDocument(BaseModel):
    """A constituent of a tree: the tokens from `start` to before `end`."""

    start: int
    end: int
    label: str | None = Field(description="What the classifier says of its state; null for models of pairs.")
    probabilities: list[float] | None = Field(description="Of the document's labels, in their order.")
    score: float | None = Field(description="Of the merge that made it; null if the encoder does not score merges.")
    step_probability: float | None = Field(description="Of this merge among all that were possible at its step.")
    expected: str | None = Field(description="The label that the task assigns to it; null if there is no rule.")


class Beam(BaseModel):
    """A tree. Beams that found the same tree are combined."""

    probability: float
    tree: str = Field(description="With brackets; -LRB- and -RRB- stand for ( and ).", examples=["((a b) c)"])
    constituents: list[ConstituentDocument] = Field(description="The leaves, then the merges in merge order.")


class SideDocument(BaseModel):
    """One of the two texts of a pair, or the only one."""

    text: str
    tokens: list[str]
    offsets: list[list[int]] | None = Field(description="The characters [start, end) of each token in the text.")
    beams: list[Beam] = Field(description="Best first.")
    chart: list[list[float]] = Field(description="[start, end, probability] of every constituent of any beam.")


class Document(BaseModel):
    """What a model says of a text."""

    model: str
    text: str = Field(description="As it was given; a pair has a tab in it.")
    label: str | None
    probabilities: dict[str, float] = Field(description="Of all labels.")
    unknown: list[str] = Field(description="Words that the model does not know: it reads them all as one.")
    labels: list[str] = Field(description="All labels of the model, in order.")
    label_styles: list[str | None] = Field(description="Names of colours in /palette.css; null: shown as text only.")
    sides: list[SideDocument]


class ModelInfo(BaseModel):
    """A model of the server."""

    name: str
    encoder: str
    task: str
    pair: bool = Field(description="Whether it reads two texts.")
    labels: list[str]
    example: list[str] = Field(description="A text to try, or two for a model of pairs.")
    examples: list[list[str]] = Field(description="More of them; the first is `example`.")


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
