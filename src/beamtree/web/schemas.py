"""Schemas of the requests and answers of the API, as documented in /openapi.json."""

from pydantic import BaseModel, ConfigDict, Field

from beamtree.web.worker import Limits


class ParseRequest(BaseModel):
    """A text, or the two texts of a pair, for one of the models of the server."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(description="One of the names in /api/models.", max_length=1000)
    text: str = Field(description="A sentence or an expression.", examples=["[MAX 2 9 [MIN 4 7 ] 0 ]"])
    second: str | None = Field(
        None, description="The second text, for a model of pairs; without it, there is no label."
    )


class ConstituentDocument(BaseModel):
    """A constituent of a tree: the tokens [start, end)."""

    start: int
    end: int
    label: str | None = Field(
        description="The label that the classifier predicts from its state; null for models of pairs."
    )
    probabilities: list[float] | None = Field(
        description="Probabilities of the labels of the document, in their order."
    )
    score: float | None = Field(
        description="Score of the merge that created it; null if the encoder does not score merges."
    )
    step_probability: float | None = Field(description="Probability of this merge among all candidates of its step.")
    expected: str | None = Field(description="The label that the task assigns to it; null if there is no rule.")


class Beam(BaseModel):
    """A tree. Beams with the same tree are combined."""

    probability: float
    tree: str = Field(description="The tree in brackets, with -LRB- and -RRB- for ( and ).", examples=["((a b) c)"])
    constituents: list[ConstituentDocument] = Field(description="The leaves, then the merges in their order.")


class SideDocument(BaseModel):
    """One of the two texts of a pair, or the only one."""

    text: str
    tokens: list[str]
    offsets: list[list[int]] | None = Field(description="The characters [start, end) of each token in the text.")
    beams: list[Beam] = Field(description="Best first.")
    chart: list[list[float]] = Field(description="[start, end, probability] of every constituent of any beam.")


class Document(BaseModel):
    """The label and the trees that a model predicts for a text."""

    model: str
    text: str = Field(description="The text of the request; the texts of a pair are separated by a tab.")
    label: str | None
    probabilities: dict[str, float] = Field(description="Probabilities of all labels.")
    unknown: list[str] = Field(description="Words that are not in the vocabulary; all are read as the unknown word.")
    labels: list[str] = Field(description="All labels of the model in order.")
    label_styles: list[str | None] = Field(
        description="Names of colours in /palette.css; null for labels without a colour."
    )
    sides: list[SideDocument]


class ModelInfo(BaseModel):
    """A model of the server."""

    name: str
    encoder: str
    task: str
    pair: bool = Field(description="Whether it takes two texts.")
    labels: list[str]
    example: list[str] = Field(description="An example text, or two texts for a model of pairs.")
    examples: list[list[str]] = Field(description="More examples; the first is `example`.")


class LimitsInfo(BaseModel):
    """The limits of a request."""

    characters: int = Field(description="Maximum number of characters per text.")
    tokens: int = Field(description="Maximum number of tokens per text.")
    waiting: int = Field(description="Maximum number of requests in the queue of a model.")
    seconds: int = Field(description="Maximum time until the answer.")

    @classmethod
    def of(cls, limits: Limits) -> "LimitsInfo":
        return cls(characters=limits.characters, tokens=limits.tokens, waiting=limits.waiting, seconds=limits.seconds)


class Models(BaseModel):
    """The models and limits of the server."""

    models: list[ModelInfo]
    limits: LimitsInfo


class Problem(BaseModel):
    """An error message."""

    error: str
