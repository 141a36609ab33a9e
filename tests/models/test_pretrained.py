"""Models on disk, on the hub and in use: saving loses nothing, and texts are tokenised as in training."""

import os
import pickle
import shutil
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import huggingface_hub.hub_mixin
import pytest
import torch
import yaml
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
from torch import nn

import beamtree
from beamtree.data import TASKS, Vocabulary
from beamtree.models import hub as models_hub
from beamtree.models import inference, pretrained, storage
from beamtree.models.build import build
from beamtree.models.config import make_config
from beamtree.models.pretrained import Parse, Pretrained, load, shipped
from beamtree.models.tokens import tokenizer_of
from beamtree.nn.beams import Encoding
from beamtree.runs import recipes
from beamtree.runs.settings import Settings
from beamtree.utils import files
from support import algorithm_2

EXPRESSION = "[MAX 2 9 [MIN 4 7 ] 0 ]"


def make(task="listops", words=None, pair=False, labels=None, vectors=None, options=None, **changes):
    """A model with random weights, and a scorer that prefers some candidates."""
    small = {"model.dim": 8, "encoder.options.beam_size": 3, "encoder.options.dropout": 0.2}
    data = {"data.task": task, "data.options": options or {}, "data.vectors": vectors}
    settings = Settings.change(recipes.load("listops"), {**small, **data, **changes})
    closed = words is None
    vocabulary = Vocabulary(TASKS[task].words if closed else words, closed=closed)
    config = make_config(settings.to_dict(), labels or TASKS[task].labels, pair, closed)
    torch.manual_seed(1)
    given = None if vectors is None else torch.randn(len(vocabulary), 8)
    model = build(config, len(vocabulary), given)
    with torch.no_grad():
        model.encoder.scorer.weight.mul_(4)
    return Pretrained(config, vocabulary, model.eval())


def english(**settings):
    return make("sst5", ["the", "film", "is", "n't", "bad", "good", "a", "?"], **settings)


def pairs():
    return make("logic", pair=True)


@pytest.fixture
def folder(tmp_path):
    make().save_pretrained(tmp_path / "run")
    return tmp_path / "run"


def message(call, *arguments, **settings):
    """The error message for a mistake, which is one line."""
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        call(*arguments, **settings)
    return str(caught.value)


def assert_same_weights(a, b):
    first, second = a.state_dict(), b.state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", [make, english, pairs])
def test_a_model_comes_back_from_its_folder(tmp_path, kind):
    original = kind()
    original.save_pretrained(tmp_path / "run")
    found = load(tmp_path / "run")
    assert (found.config, found.vocabulary, found.labels) == (original.config, original.vocabulary, original.labels)
    assert_same_weights(found, original)
    assert not found.training
    assert not found.model.training
    assert found.results is None
    assert set(os.listdir(tmp_path / "run")) == {storage.CONFIG, storage.WEIGHTS, storage.VOCABULARY, "README.md"}


def test_frozen_vectors_are_in_the_folder(tmp_path):
    original = english(vectors="glove-840b")
    original.save_pretrained(tmp_path)
    found = load(tmp_path)
    assert_same_weights(found, original)
    assert found.model.embedding.words.weight.abs().sum() > 0
    assert not found.model.embedding.words.weight.requires_grad


def test_loading_runs_no_pickled_code_and_draws_nothing(folder, monkeypatch):
    def refuse(*arguments, **settings):
        raise AssertionError("unpickled")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    before = torch.get_rng_state()
    load(folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_results_of_another_model_do_not_stay_in_its_folder(folder, tmp_path):
    for name in (storage.RESULTS, storage.TOKENIZER):
        files.write_json(tmp_path / name, {"splits": {}})
    load(folder).save_pretrained(tmp_path)
    assert not (tmp_path / storage.RESULTS).exists()
    assert not (tmp_path / storage.TOKENIZER).exists()


def test_results_travel_with_the_model(folder, tmp_path):
    results = {"splits": {"near-iid": {"correct": 3, "count": 4, "accuracy": 0.75, "loss": 0.5}}, "epochs": 2}
    files.write_json(folder / storage.RESULTS, results)
    load(folder).save_pretrained(tmp_path / "copy")
    assert load(tmp_path / "copy").results == results
    assert "| near-iid | 75.00 | 4 |" in (tmp_path / "copy" / "README.md").read_text()


def test_predictions_do_not_depend_on_the_batch_and_keep_their_order(monkeypatch):
    model = make()
    digits = "[SM 1 2 3 4 ] "
    texts = ["5", digits * 20, EXPRESSION, digits, "7", "[MAX 1 2 ]", digits * 7]
    alone = [model.predict([text])[0] for text in texts]
    monkeypatch.setattr(inference, "_MAX_TOKENS_SQUARED", 30_000)
    shapes = []
    model.model.encoder.register_forward_hook(lambda module, inputs, output: shapes.append(inputs[0].shape[:2]))
    together = model.predict(texts)
    for one, other in zip(alone, together, strict=True):
        assert one.label == other.label
        assert list(one.probabilities.values()) == pytest.approx(list(other.probabilities.values()), abs=1e-6)
    assert 1 < len(shapes) < len(texts)
    assert all(B == 1 or B * N * N <= 30_000 for B, N in shapes)


def test_probabilities_are_those_of_the_labels():
    for model, text in ((make(), EXPRESSION), (english(labels=("no", "yes")), "a good film"), (pairs(), ("a", "b"))):
        (found,) = model.predict([text])
        assert tuple(found.probabilities) == model.labels
        assert sum(found.probabilities.values()) == pytest.approx(1)
        assert found.probabilities[found.label] == max(found.probabilities.values())


def test_a_prediction_is_the_models_own():
    model = make()
    tokens = torch.tensor([model.vocabulary.ids(EXPRESSION.split())])
    with torch.inference_mode():
        out = model.model(tokens, torch.tensor([tokens.shape[1]]))
    (found,) = model.predict([EXPRESSION])
    assert found.label == model.labels[int(model.model.predictions(out.logits))]
    assert list(found.probabilities.values()) == pytest.approx(out.logits.softmax(1)[0].tolist())


def test_a_model_in_training_predicts_without_dropout_and_goes_on_training():
    model = make()
    expected = model.predict([EXPRESSION])
    trees = model.parse(EXPRESSION)
    model.train()
    assert model.predict([EXPRESSION]) == expected
    assert model.parse(EXPRESSION) == trees
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("text", ["[MAX 2 9 [MIN 4 7] 0]", "( ( ( [MAX 2 ) 9 ) ( ( ( [MIN 4 ) 7 ) ] ) ) 0 ) ]"])
def test_listops_is_read_however_its_brackets_stand(text):
    model = make()
    assert model.parse(text)[0].tree.leaves == tuple(EXPRESSION.split())


@pytest.mark.parametrize(
    ("kind", "text", "tokens"),
    [
        (pairs, "(a(and(not b)))", "( a ( and ( not b ) ) )"),
        (english, "The film isn't bad.", "the film is n't bad ."),
        (partial(english, options={"tokenizer": "spaces"}), "The film isn't bad.", "The film isn't bad."),
        (partial(make, "imdb", ["good", "bad"]), "Good<br />bad", "good bad"),
    ],
)
def test_texts_are_cut_as_those_of_the_task(kind, text, tokens):
    model = kind()
    assert tokenizer_of(model.config, model.vocabulary).words(text) == tokens.split()


def test_unknown_words_of_an_open_vocabulary_are_named():
    model = english()
    found, plain = model.predict(["A dull dull film, <unk>", "a good film"])
    assert found.unknown == ("dull", ",", "<", "unk", ">")
    assert plain.unknown == ()
    assert model.predict(["a awful film"])[0].probabilities == model.predict(["a dull film"])[0].probabilities


def test_unknown_tokens_of_a_closed_vocabulary_are_refused():
    found = message(make().predict, ["1", "[MXA 1 x x [MEAN 10 ] ]"])
    assert "'[MXA 1 x x [MEAN 10 ] ]': unknown token '[MXA' (did you mean '[MAX'?); known: [MIN, [MAX" in found
    assert found.endswith("also unknown: 'x', '[MEAN', '10'")
    assert "<pad>" not in found


@pytest.mark.parametrize(
    ("kind", "texts", "expected"),
    [
        (make, ["1", " \n"], "the text ' \\n' is empty"),
        (make, "1", "texts is the string '1': it must be a list"),
        (make, [("1", "2")], "the model takes single texts"),
        (make, [5], "5 does not fit: the model takes single texts"),
        (pairs, ["a"], "'a' does not fit: the model takes pairs of texts"),
        (pairs, [("a", "")], "the text '' is empty"),
        (pairs, [("a", "b", "a")], "the model takes pairs of texts"),
        (make, ["x" * 1000], "…: unknown token"),
    ],
)
def test_what_cannot_be_predicted_is_answered_in_one_line(shape_checks_off, kind, texts, expected):
    assert expected in message(kind().predict, texts)


def test_nothing_to_predict_is_nothing():
    assert make().predict([]) == []
    assert make().parse_all([]) == []


def test_a_pair_is_read_in_its_order():
    model = pairs()
    texts = [("( a ( and b ) )", "b"), ("b", "( a ( and b ) )"), ("a", "( not a )")]
    together = model.predict(texts)
    for pair, found in zip(texts, together, strict=True):
        sides = [torch.tensor([model.vocabulary.ids(side.split())]) for side in pair]
        states = [model.model.encode(side, torch.tensor([side.shape[1]])).state for side in sides]
        p, h = states
        logits = model.model.head(torch.cat((p, h, p * h, (p - h).abs()), dim=1))
        assert list(found.probabilities.values()) == pytest.approx(logits.softmax(1)[0].tolist(), abs=1e-6)
    assert model.parse(texts[0][0])[0].tree.leaves == ("(", "a", "(", "and", "b", ")", ")")


def test_parses_are_the_papers_with_equal_trees_merged():
    model = make(**{"encoder.options.beam_size": 8})
    tokens = ["[MAX", "2", "9", "[MIN", "4", "]", "]"]
    encoder = model.model.encoder
    with torch.no_grad():
        vectors = model.model.embedding(torch.tensor([model.vocabulary.ids(tokens)]))[0]
        beams = algorithm_2(encoder, encoder.leaf(vectors), 8)
        probabilities = torch.stack([score for score, _, _ in beams]).softmax(0).tolist()
    expected = {}
    for (_, actions, _), probability in zip(beams, probabilities, strict=True):
        tree = beamtree.Tree.from_actions(actions, tokens)
        expected[tree] = expected.get(tree, 0) + probability
    found = model.parse(" ".join(tokens))
    assert len(found) == len(expected) < 8  # some beams found the same tree
    assert [parse.probability for parse in found] == sorted((parse.probability for parse in found), reverse=True)
    assert {parse.tree: parse.probability for parse in found} == pytest.approx(expected, abs=1e-5)
    assert sum(parse.probability for parse in found) == pytest.approx(1)


def test_many_parses_are_those_of_each():
    model = make()
    texts = [EXPRESSION, "3", "[SM 1 2 3 4 ]"]
    for one, other in zip(model.parse_all(texts), map(model.parse, texts), strict=True):
        assert [parse.tree for parse in one] == [parse.tree for parse in other]
    assert model.parse("3") == [Parse(beamtree.Tree.parse("3"), 1.0, ())]


def test_a_notebook_draws_the_parses():
    shown = make().parse(EXPRESSION)._repr_html_()
    assert shown.startswith("<div")
    assert "probability" in shown
    assert "[MIN" in shown


class Mean(nn.Module):
    """An encoder without trees."""

    dim = 8

    def forward(self, x, lengths):
        return Encoding(x.mean(1))


def test_a_model_without_trees_predicts_but_does_not_parse():
    model = make()
    model.model.encoder = Mean()
    assert model.predict([EXPRESSION])
    assert message(model.parse, EXPRESSION) == "bt-grc builds no trees: it can predict, not parse"


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda run: (run / storage.CONFIG).unlink(), "is not a run: it has no config.yaml"),
        (lambda run: (run / storage.WEIGHTS).unlink(), "has no model.safetensors"),
        (lambda run: (run / storage.VOCABULARY).unlink(), "has no vocab.json"),
        (lambda run: (run / storage.VOCABULARY).write_text('["<pad>", "<unk>"'), "vocab.json: it is not JSON"),
        (lambda run: (run / storage.VOCABULARY).write_text('["a"]'), "vocab.json: it is not a vocabulary"),
        (lambda run: Vocabulary("abc").save(run / storage.VOCABULARY), "vocab.json has 6 words and model.safetensors"),
        (lambda run: (run / storage.WEIGHTS).write_bytes(b"x"), "it is damaged, or not a safetensors file"),
        (lambda run: storage.write_weights(run, nn.Linear(2, 2)), "embedding.words.weight is missing"),
        (lambda run: replace(run, "name: bt-grc", "name: bt-gcr"), "config.yaml: unknown encoder 'bt-gcr' (did you"),
        (lambda run: replace(run, "beam_size: 3", "beam_siz: 3"), "unknown option of bt-grc 'beam_siz' (did you"),
        (lambda run: replace(run, "beam_size: 3", "dim: 3"), "config.yaml: encoder.options.dim is not a setting"),
        (lambda run: replace(run, "dim: 8", "dim: 9"), "embedding.words.weight is floats of shape (18, 8) and must"),
        (lambda run: replace(run, "pair: false", "pair: true"), "head.hidden.weight is floats of shape (8, 8)"),
        (lambda run: replace(run, "vectors: null", "vectors: glove-840b"), "embedding.unknown is missing"),
    ],
)
def test_a_damaged_folder_is_answered_in_one_line(folder, damage, expected):
    damage(folder)
    found = message(load, folder)
    assert expected in found
    assert str(folder) in found


def test_a_config_with_aliases_is_refused_before_they_are_expanded(folder):
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))]
    path = folder / "config.yaml"
    path.write_text("\n".join(lines))
    found = message(load, folder)
    assert "aliases are not allowed" in found
    assert len(found) < 400


def test_what_a_config_holds_is_quoted_in_short(folder):
    path = folder / "config.yaml"
    before = path.read_text()
    path.write_text(before.replace("dim: 8", f"dim: {'x' * 10_000}"))
    assert len(message(load, folder)) < 1000
    path.write_text(before.replace("labels:", f"labels: {'y' * 10_000}\nlabels2:"))
    assert len(message(load, folder)) < 1000
    path.write_text(before.replace("dim: 8", "").replace("beamtree: ", f"beamtree: {'z' * 10_000}"))
    assert len(message(load, folder)) < 1000


def test_no_memory_is_taken_for_a_model_that_the_weights_do_not_fit(folder):
    path = folder / "config.yaml"
    document = yaml.safe_load(path.read_text())
    document["model"]["dim"] = 600_000  # whose cell would have 17 TiB
    path.write_text(yaml.safe_dump(document))
    assert "these are the weights of another model" in message(load, folder)


def replace(run, old, new):
    path = run / storage.CONFIG
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_shipped_models_are_found_by_name(folder, monkeypatch):
    monkeypatch.setattr(pretrained, "_SHIPPED", folder.parent)
    (folder.parent / "no-model").mkdir()
    folder.rename(folder.with_name("listops-bt-grc"))
    assert shipped() == ["listops-bt-grc"]
    assert load("listops-bt-grc").labels == tuple("0123456789")
    found = message(load, "listops-bt-gcr")
    assert "unknown model 'listops-bt-gcr' (did you mean 'listops-bt-grc'?); known: listops-bt-grc" in found
    assert "owner/name" in found


def test_a_folder_goes_before_a_shipped_model_of_its_name(folder, monkeypatch):
    monkeypatch.setattr(pretrained, "_SHIPPED", folder.parent)
    monkeypatch.chdir(folder.parent)
    english().save_pretrained("own/run")
    monkeypatch.chdir("own")
    assert not load("run").config.closed_vocabulary


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("./none", "./none: there is no such folder"),
        ("runs/listops/none", "runs/listops/none: there is no such folder"),
        (Path("owner/none"), "owner/none: there is no such folder"),
        ("none", "unknown model 'none'"),
    ],
)
def test_a_name_that_can_be_no_hub_id_is_not_asked_for(monkeypatch, name, expected):
    monkeypatch.setattr(models_hub, "snapshot_download", None)
    assert expected in message(load, name)


@pytest.mark.parametrize("device", ["gpu", "cuda:77"])
def test_a_device_that_is_not_there_is_refused(folder, device):
    assert f"device is '{device}', which is not available here" in message(load, folder, device)


class Hub:
    """A hub in a folder. What is uploaded there can be downloaded."""

    def __init__(self, root):
        self.root = root

    def __call__(self, token=None):
        return self

    def create_repo(self, repo_id, **settings):
        self.repo_id = repo_id
        return self

    def upload_folder(self, repo_id, folder_path, **settings):
        shutil.copytree(folder_path, self.root / repo_id)
        return f"hub://{repo_id}"

    def snapshot_download(self, repo_id, allow_patterns, **settings):
        kept = self.root / "cache" / repo_id
        kept.mkdir(parents=True, exist_ok=True)
        for file in allow_patterns:
            if (self.root / repo_id / file).exists():
                shutil.copy(self.root / repo_id / file, kept / file)
        return str(kept)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    made = Hub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub.hub_mixin, "HfApi", made)
    monkeypatch.setattr(models_hub, "snapshot_download", made.snapshot_download)
    return made


def test_a_model_goes_to_the_hub_and_comes_back(hub):
    original = make()
    assert original.push_to_hub("owner/model", private=True) == "hub://owner/model"
    files = {storage.CONFIG, storage.WEIGHTS, storage.VOCABULARY, "README.md"}
    assert set(os.listdir(hub.root / "owner" / "model")) == files
    found = load("owner/model")
    assert_same_weights(found, original)
    assert found.predict([EXPRESSION]) == original.predict([EXPRESSION])


def test_the_card_tells_what_the_model_is(hub):
    model = pairs()
    model.results = {"splits": {"iid": {"correct": 3, "count": 4, "accuracy": 0.75, "loss": 0.5}}}
    model.push_to_hub("owner/model")
    card = huggingface_hub.ModelCard.load(hub.root / "owner" / "model" / "README.md")
    assert card.data.library_name == "beamtree"
    assert "logic" in card.data.tags
    assert [(each.dataset_split, each.metric_value) for each in card.data.eval_results] == [("iid", 0.75)]
    for part in ("`bt-grc`", "dim 8", "pairs of texts", "=, <, >, ^, |, v, #", 'beamtree.load("owner/model")'):
        assert part in card.text


def test_a_foreign_model_on_the_hub_is_refused(hub):
    (hub.root / "owner" / "other").mkdir(parents=True)
    assert message(load, "owner/other") == "owner/other is not a beamtree model: on the hub it has no config.yaml"


def test_without_a_network_the_hub_is_an_error_of_one_line(monkeypatch):
    http_error = HfHubHTTPError.__bases__[0]
    for error in (LocalEntryNotFoundError("no network\nat all"), http_error("no network"), ConnectionError("")):

        def fail(*arguments, error=error, **settings):
            raise error

        monkeypatch.setattr(models_hub, "snapshot_download", fail)
        monkeypatch.setattr(huggingface_hub.hub_mixin, "HfApi", fail)
        reason = "no network" if str(error) else "ConnectionError"
        asked = message(load, "owner/name")
        assert asked == f"owner/name: there is no such folder, and the hub cannot be used ({reason})"
        assert message(make().push_to_hub, "owner/name") == f"owner/name: the hub cannot be used ({reason})"


def test_a_name_that_the_hub_does_not_have_is_an_error_of_one_line(monkeypatch):
    def fail(*arguments, **settings):
        raise RepositoryNotFoundError("404 Client Error\n\nRepository Not Found", response=MagicMock())

    monkeypatch.setattr(models_hub, "snapshot_download", fail)
    assert "runs/none: there is no such folder, and the hub has no such model" in message(load, "runs/none")


def test_a_model_is_built_as_its_settings_say():
    changes = {"model.hidden": 5, "model.dropout": 0.3, "model.dropout_in": 0.4}
    model = make(**changes).model
    assert model.head.hidden.weight.shape == (5, 8)
    assert (model.head.dropout.p, model.dropout_in.p) == (0.3, 0.4)
    assert (model.encoder.beam_size, model.encoder.cell.dropout) == (3, 0.2)
    assert model.head.classes == 10


def test_vectors_and_settings_must_go_together():
    model = make()
    assert "data.vectors is None and vectors are given" in message(build, model.config, 18, torch.zeros(18, 8))
    model = english(vectors="glove-840b")
    assert "data.vectors is 'glove-840b' and no vectors are given" in message(build, model.config, 18)


def test_a_text_is_checked_without_encoding_it():
    model = make()
    model.check("[MAX 2 9 ]")
    with pytest.raises(ValueError, match="unknown token 'x'"):
        model.check("[MAX x ]")
    with pytest.raises(ValueError, match="is empty"):
        pairs().check("( a ( and b ) )", " ")
