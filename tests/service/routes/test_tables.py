"""Tables of vectors in both published forms, exported and served, against sentence-transformers' StaticEmbedding."""

import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from export.checkpoint import read_checkpoint
from export.errors import UnsupportedModel
from export.exporter import export_artifact
from export.original import compare_with_original
from export.sources import Folder
from export.verify import Case
from tests.service.routes.conftest import Client, post
from tests.task_artifacts import TaskArtifact
from tests.tokenizers import VOCABULARY, wordpiece

SIZE = 12
TEXTS = ["the cat", "the cats sat on the mats, the mats.", "lower [SEP] newest", "zzz"]
FORMS = ("sentence-transformers", "model2vec")


def write_table(folder: Path, form: str) -> Path:
    """A folder as the form has it: potion's has a row for several tokens, weights and other settings beside it."""
    generator = torch.Generator().manual_seed(3)
    modules = [{"type": "sentence_transformers.models.StaticEmbedding", "path": "0_StaticEmbedding"}]
    tensors = {"embedding.weight": torch.randn(VOCABULARY, SIZE, generator=generator)}
    if form == "model2vec":
        modules = [{"type": modules[0]["type"], "path": "."}, {"type": "sentence_transformers.models.Normalize"}]
        modules[1]["path"] = "1_Normalize"
        mapping = torch.randint(0, 40, (VOCABULARY,), generator=generator)
        rows = torch.randn(40, SIZE, generator=generator)
        tensors = {"embeddings": rows, "mapping": mapping, "weights": torch.rand(VOCABULARY, generator=generator)}
    network = folder / modules[0]["path"]
    network.mkdir(parents=True)
    (folder / "modules.json").write_text(json.dumps([{"idx": i, "name": str(i), **m} for i, m in enumerate(modules)]))
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "architectures": ["StaticModel"]}))
    (network / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    save_file(tensors, network / "model.safetensors")
    wordpiece().save(str(network / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module", params=FORMS)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TaskArtifact:
    directory = tmp_path_factory.mktemp("table")
    folder = write_table(directory / "folder", request.param)
    with patch("export.verify.grid", lambda _: [Case((7, 3), 7, (0,))]):
        export_artifact(read_checkpoint(Folder(folder, "table")), directory / "artifact", explains=False)
    return TaskArtifact(folder, directory / "artifact")


def test_a_table_answers_as_its_original_and_has_no_attention(client: Client, table: TaskArtifact) -> None:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - seconds to import

    original = SentenceTransformer(str(table.folder), device="cpu")
    expected = original.encode(TEXTS, show_progress_bar=False, normalize_embeddings=True)
    asked = client(table.artifact)
    np.testing.assert_allclose(post(asked, "/encode", inputs=TEXTS)["embeddings"], expected, atol=1e-6)
    vectors = [row["embedding"] for row in post(asked, "/v1/embeddings", input=TEXTS)["data"]]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    compared = compare_with_original(read_checkpoint(Folder(table.folder, "table")), table.folder)
    assert compared["compared"]
    assert compared["pooled"] < 1e-6
    refused = asked.post("/encode", json={"inputs": "the cat", "attention": {}})
    assert refused.status_code == 422
    assert "the model has no heads (a table of vectors, or all were removed), so it has no attention" in refused.text


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    folder = write_table(tmp_path / "folder", "model2vec")
    for tensors in ({"other": torch.ones(3, 4)}, {"embeddings": torch.ones(3, 4, dtype=torch.int8)}):
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(UnsupportedModel, match="needs a tensor embedding.weight, or embeddings"):
            read_checkpoint(Folder(folder, "table"))
