"""The configuration of a model: its values from `config.yaml`, and errors for invalid ones."""

from copy import deepcopy

import pytest

import beamtree
from beamtree.models.config import Config, make_config
from beamtree.runs import recipes


@pytest.fixture
def document():
    """The contents of a valid `config.yaml`."""
    own = {"labels": ["no", "yes"], "pair": False, "closed_vocabulary": True, "beamtree": beamtree.__version__}
    return {**recipes.load("listops", seed=3).to_dict(), **own}


def changed(document, key, value):
    """A copy with another value, whose key may be new."""
    found = deepcopy(document)
    *sections, name = key.split(".")
    group = found
    for section in sections:
        group = group[section]
    group[name] = value
    return found


def message(document):
    """The error message for a document that is refused, which is one line."""
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        Config.from_document(document, "here")
    return str(caught.value)


def test_a_config_has_what_the_document_says(document):
    config = Config.from_document(document)
    assert (config.encoder, config.encoder_options) == ("bt-grc", document["encoder"]["options"])
    assert config.tests == tuple(document["data"]["tests"])
    assert (config.task, config.data_options, config.vectors) == ("listops", document["data"]["options"], None)
    assert (config.dim, config.hidden) == (document["model"]["dim"], document["model"]["hidden"])
    assert (config.dropout, config.dropout_in) == (document["model"]["dropout"], document["model"]["dropout_in"])
    assert (config.labels, config.pair, config.closed_vocabulary) == (("no", "yes"), False, True)
    assert config.document == document
    assert config.settings == recipes.load("listops", seed=3).to_dict()


def test_a_config_is_made_from_the_settings_of_a_run(document):
    settings = recipes.load("listops", seed=3).to_dict()
    assert make_config(settings, ("no", "yes"), pair=False, closed_vocabulary=True) == Config.from_document(document)


@pytest.mark.parametrize("key", ["more", "model.more", "encoder.more", "data.more", "training.more"])
def test_settings_that_a_model_does_not_need_are_kept(document, key):
    """A file of a later version may have more of them."""
    more = changed(document, key, [1, 2])
    config = Config.from_document(more)
    assert config.document == more
    assert config.dim == document["model"]["dim"]


@pytest.mark.parametrize("key", ["recipe", "seed", "optimizer", "training", "data.tests"])
def test_a_model_does_not_need_the_settings_of_its_training(document, key):
    *sections, name = key.split(".")
    del (document[sections[0]] if sections else document)[name]
    assert Config.from_document(document).encoder == "bt-grc"


@pytest.mark.parametrize(
    "key",
    [
        *("data", "model", "encoder", "data.task", "data.options", "data.vectors", "model.dim", "model.hidden"),
        *("model.dropout", "model.dropout_in", "encoder.name", "encoder.options"),
    ],
)
def test_a_missing_setting_is_named(document, key):
    *sections, name = key.split(".")
    del (document[sections[0]] if sections else document)[name]
    assert message(document) == f"here: {key} is missing"


@pytest.mark.parametrize("key", ["labels", "pair", "closed_vocabulary", "beamtree"])
def test_a_missing_key_of_the_model_is_named(document, key):
    del document[key]
    assert message(document) == f"here: the key {key} is missing"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("labels", ["no"], "labels is ['no']: it must be a list of two or more different strings"),
        ("labels", ["no", "no"], "labels is ['no', 'no']: it must be a list of two or more different strings"),
        ("labels", ["no", 1], "labels is ['no', 1]: it must be a list of two or more different strings"),
        ("labels", "yes", "labels is 'yes': it must be of type list"),
        ("pair", 1, "pair is 1: it must be of type bool"),
        ("closed_vocabulary", None, "closed_vocabulary is None: it must be of type bool"),
        ("beamtree", 0.1, "beamtree is 0.1: it must be of type str"),
        ("model", None, "model is None: it must be a mapping of settings"),
        ("model", [8], "model is [8]: it must be a mapping of settings"),
        ("model.dim", 0, "model.dim is 0: it must be an integer of at least 1"),
        ("model.dim", True, "model.dim is True: it must be an integer of at least 1"),
        ("model.dim", 8.0, "model.dim is 8.0: it must be an integer of at least 1"),
        ("model.dim", None, "model.dim is None: it must be an integer of at least 1"),
        ("model.hidden", 0, "model.hidden is 0: it must be an integer of at least 1"),
        ("model.hidden", False, "model.hidden is False: it must be an integer of at least 1"),
        ("model.dropout", 1, "model.dropout is 1: it must be a number from 0 up to but not including 1"),
        ("model.dropout", -0.1, "model.dropout is -0.1: it must be a number from 0 up to but not including 1"),
        ("model.dropout", float("nan"), "model.dropout is nan: it must be a number from 0"),
        ("model.dropout", False, "model.dropout is False: it must be a number"),
        ("model.dropout_in", "0.1", "model.dropout_in is '0.1': it must be a number"),
        ("model.dropout_in", 10**400, "model.dropout_in is 1000"),
        ("encoder.name", "", "encoder.name is '': it must be a non-empty string"),
        ("encoder.name", ["bt-grc"], "encoder.name is ['bt-grc']: it must be a non-empty string"),
        ("encoder.options", None, "encoder.options is None: it must be a mapping of options"),
        ("encoder.options", {1: 2}, "encoder.options is {1: 2}: it must be a mapping of options"),
        ("encoder.options.beam_size", [5], "beam_size is [5]: it must be a boolean, a number or a string"),
        ("data.task", 5, "data.task is 5: it must be a non-empty string"),
        ("data.vectors", 5, "data.vectors is 5: it must be a non-empty string"),
        ("data.options.seed", [1], "data.options.seed is [1]: it must be a boolean, a number or a string"),
        ("data.options.seed", None, "data.options.seed is None: it must be a boolean, a number or a string"),
        ("data.tests", "near-iid", "data.tests is 'near-iid': it must be a list of names"),
        ("data.tests", [8], "data.tests is [8]: it must be a list of names"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_must_be(document, key, value, expected):
    found = message(changed(document, key, value))
    assert found.startswith("here: ")
    assert expected in found


@pytest.mark.parametrize("document", [None, [], "text", 5])
def test_a_document_without_settings_is_refused(document):
    assert message(document) == f"here: it contains {type(document).__name__}, not the settings of a run"


def test_an_integer_is_accepted_for_a_rate(document):
    assert type(Config.from_document(changed(document, "model.dropout", 0)).dropout) is float


def test_a_file_of_another_version_says_so(document):
    later = changed(changed(document, "beamtree", "9.9\n.9"), "model.dim", 0)
    assert message(later).endswith(f" (it was written by beamtree 9.9 .9, and this is {beamtree.__version__})")
