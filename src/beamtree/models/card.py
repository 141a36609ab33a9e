"""Model cards: the README of a model on the hub, with the metadata that the hub displays."""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from beamtree.data.loading import TASKS
from beamtree.models.config import Config

LICENSE = "apache-2.0"
_WORDS_NOTE = "Word vectors: `{vectors}`, not trained further; words without a vector share one learned vector."
_CLOSED_NOTE = "The texts are of a formal language; tokens that were not in the training data are rejected."
_OPEN_NOTE = "Words that were not in the training data are all encoded as one unknown word."


def make_card(config: Config, results: dict[str, Any] | None, name: str) -> ModelCard:
    """Create the card of a model. `name` is its hub id or folder, `results` are those of the run that trained it."""
    document, own = config.document, config.task not in TASKS
    task = Path(config.task).name if own else config.task  # of a data file, only its name
    splits = results["splits"] if results is not None else {}
    data = ModelCardData(
        library_name="beamtree",
        pipeline_tag="text-classification",
        license=LICENSE,
        tags=["latent-trees", "recursive-neural-networks", task],
        metrics=["accuracy"],
        model_name=f"{config.encoder} on {task}",
        eval_results=[
            EvalResult(
                task_type="text-classification",
                dataset_type=task,
                dataset_name=task,
                dataset_split=split,
                metric_type="accuracy",
                metric_value=round(score["accuracy"], 6),
            )
            for split, score in splits.items()
        ]
        or None,
    )
    options = ", ".join(f"{key} {value}" for key, value in {"dim": config.dim, **config.encoder_options}.items())
    texts = "pairs of texts" if config.pair else "texts"
    example = '("…", "…")' if config.pair else '"…"'
    sections = [
        f"---\n{data.to_yaml()}\n---",
        f"# {config.encoder} on {task}",
        f"A [beamtree](https://pypi.org/project/beamtree/) model: the encoder `{config.encoder}` ({options}), "
        f"which classifies {texts} as one of {', '.join(config.labels)}.",
        f'```python\nimport beamtree\n\nmodel = beamtree.load("{name}")\nmodel.predict([{example}])\n```',
        f"## Training\n\nData: `{task}`. Recipe: `{document.get('recipe')}`, seed {document.get('seed')}. "
        "`config.yaml` contains all settings; in this folder, the command is\n\n"
        f"```\nbeamtree train config.yaml{' --data FILE' if own else ''} --seed {document.get('seed')}\n```",
    ]
    if config.parser is not None:
        sections.append("## Trees\n\nThe encoder composes along the trees of another model, in the folder `parser`.")
    if splits:
        rows = [f"| {split} | {100 * each['accuracy']:.2f} | {each['count']:,} |" for split, each in splits.items()]
        sections.append("\n".join(("## Results\n", "| split | accuracy, % | samples |", "|---|---|---|", *rows)))
    limits = [_CLOSED_NOTE if config.closed_vocabulary else _OPEN_NOTE]
    if config.vectors is not None:
        limits.append(_WORDS_NOTE.format(vectors=config.vectors))
    sections.append("## Limits\n\n" + " ".join(limits) + " The accuracies are those of a single run.")
    return ModelCard("\n\n".join(sections) + "\n")
