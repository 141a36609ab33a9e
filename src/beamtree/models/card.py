"""Model cards: the README of a model on the hub, with the metadata that the hub lists and compares."""

from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from beamtree.models.config import Config

LICENSE = "apache-2.0"
_WORDS_NOTE = "Word vectors: `{vectors}`, not trained further; words without a vector share one learned vector."
_CLOSED_NOTE = "It reads a formal language: a token that was not in the training data is refused."
_OPEN_NOTE = "Words that were not in the training data are all read as one unknown word."


def make_card(config: Config, results: dict[str, Any] | None, name: str) -> ModelCard:
    """The card of a model, whose name on the hub, or folder, is `name`. `results` are those of its training run."""
    document = config.document
    splits = results["splits"] if results is not None else {}
    data = ModelCardData(
        library_name="beamtree",
        pipeline_tag="text-classification",
        license=LICENSE,
        tags=["latent-trees", "recursive-neural-networks", config.task],
        metrics=["accuracy"],
        model_name=f"{config.encoder} on {config.task}",
        eval_results=[
            EvalResult(
                task_type="text-classification",
                dataset_type=config.task,
                dataset_name=config.task,
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
        f"# {config.encoder} on {config.task}",
        f"A model of [beamtree](https://pypi.org/project/beamtree/): the encoder `{config.encoder}` ({options}), "
        f"which classifies {texts} as one of {', '.join(config.labels)}.",
        f'```python\nimport beamtree\n\nmodel = beamtree.load("{name}")\nmodel.predict([{example}])\n```',
        f"## Training\n\nData: `{config.task}`. Recipe: `{document.get('recipe')}`, seed {document.get('seed')}. "
        "`config.yaml` holds every setting.\n\n"
        f"```\nbeamtree train {document.get('recipe')} --encoder {config.encoder} --seed {document.get('seed')}\n```",
    ]
    if splits:
        rows = [f"| {split} | {100 * each['accuracy']:.2f} | {each['count']:,} |" for split, each in splits.items()]
        sections.append("\n".join(("## Results\n", "| split | accuracy, % | samples |", "|---|---|---|", *rows)))
    limits = [_CLOSED_NOTE if config.closed_vocabulary else _OPEN_NOTE]
    if config.vectors is not None:
        limits.append(_WORDS_NOTE.format(vectors=config.vectors))
    sections.append("## Limits\n\n" + " ".join(limits) + " Accuracies are of one training run.")
    return ModelCard("\n\n".join(sections) + "\n")
