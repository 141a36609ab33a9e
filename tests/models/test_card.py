"""Model cards: metadata that the hub understands, and a text that says how to use the model."""

import pytest
import yaml
from huggingface_hub import ModelCard

from beamtree.models.card import LICENSE, make_card
from beamtree.models.config import make_config
from beamtree.runs import recipes
from beamtree.runs.settings import Settings

RESULTS = {
    "splits": {
        "near-iid": {"correct": 3, "count": 4, "accuracy": 0.75, "loss": 0.5},
        "900-1000": {"correct": 1234, "count": 2000, "accuracy": 0.617, "loss": 1.5},
    }
}


def config(pair=False, closed=True, **changes):
    settings = Settings.change(recipes.load("listops", seed=3), changes)
    return make_config(settings.to_dict(), ("no", "yes"), pair, closed)


def header(card):
    """The metadata at the top of the card, as the hub parses it."""
    before, metadata, _ = str(card).split("---\n", 2)
    assert before == ""
    return yaml.safe_load(metadata)


def test_the_metadata_names_library_licence_task_and_tags():
    found = header(make_card(config(), RESULTS, "owner/model"))
    assert LICENSE == "apache-2.0"
    assert found["license"] == LICENSE
    assert found["library_name"] == "beamtree"
    assert found["pipeline_tag"] == "text-classification"
    assert found["tags"] == ["latent-trees", "recursive-neural-networks", "listops"]
    assert found["metrics"] == ["accuracy"]


def test_the_model_index_has_the_accuracy_of_each_split():
    (index,) = header(make_card(config(), RESULTS, "owner/model"))["model-index"]
    assert index["name"] == "bt-grc on listops"
    found = {}
    for result in index["results"]:
        assert result["task"] == {"type": "text-classification"}
        assert (result["dataset"]["type"], result["dataset"]["name"]) == ("listops", "listops")
        (metric,) = result["metrics"]
        assert metric["type"] == "accuracy"
        found[result["dataset"]["split"]] = metric["value"]
    assert found == {"near-iid": 0.75, "900-1000": 0.617}


def test_data_of_ones_own_is_named_without_its_path():
    card = make_card(config(**{"data.task": "/somewhere/else/reviews.tsv"}), RESULTS, "owner/model")
    assert "somewhere" not in str(card)
    assert "# bt-grc on reviews.tsv" in card.text
    assert "beamtree train config.yaml --data FILE --seed 3\n" in card.text


def test_a_parser_is_mentioned_without_its_path():
    along = config(**{"encoder.name": "gold-tree-grc", "encoder.options": {}, "data.parser": "/somewhere/else"})
    card = make_card(along, RESULTS, "owner/model")
    assert "along the trees of another model, in the folder `parser`" in card.text
    assert "/somewhere" not in card.text
    assert "parser" not in make_card(config(), RESULTS, "owner/model").text


@pytest.mark.parametrize("results", [None, {"splits": {}}])
def test_without_results_there_is_no_model_index(results):
    card = make_card(config(), results, "owner/model")
    assert "model-index" not in header(card)
    assert "## Results" not in card.text


def test_a_card_is_read_back_as_it_was_written(tmp_path):
    card = make_card(config(), RESULTS, "owner/model")
    card.save(tmp_path / "README.md")
    found = ModelCard.load(tmp_path / "README.md")
    assert found.text == card.text
    values = {result.dataset_split: result.metric_value for result in found.data.eval_results}
    assert values == {"near-iid": 0.75, "900-1000": 0.617}


def test_the_text_says_what_the_model_is_and_how_to_use_it():
    text = make_card(config(), RESULTS, "owner/model").text
    parts = ("the encoder `bt-grc` (dim 128, ", "beam_size 5", "classifies texts as one of no, yes")
    python = ('beamtree.load("owner/model")', 'model.predict(["…"])')
    for part in (*parts, *python, "beamtree train config.yaml --seed 3"):
        assert part in text
    for part in ("| near-iid | 75.00 | 4 |", "| 900-1000 | 61.70 | 2,000 |"):
        assert part in text


def test_a_model_of_pairs_is_called_with_pairs():
    text = make_card(config(pair=True), None, "owner/model").text
    assert "classifies pairs of texts" in text
    assert 'model.predict([("…", "…")])' in text


@pytest.mark.parametrize(
    ("closed", "expected"),
    [(True, "tokens that were not in the training data are rejected"), (False, "are all encoded as one unknown word")],
)
def test_the_limits_say_what_happens_to_unknown_words(closed, expected):
    assert expected in make_card(config(closed=closed), None, "owner/model").text


def test_the_limits_name_pretrained_vectors():
    text = make_card(config(**{"data.vectors": "glove-840b"}), None, "owner/model").text
    assert "Word vectors: `glove-840b`" in text
    assert "Word vectors" not in make_card(config(), None, "owner/model").text
