from pathlib import Path

import pytest

from benchmarks.inputs import network, reranker
from export.checkpoint import read_checkpoint
from export.sources import Folder


def test_a_drawn_cross_encoder_is_read_as_a_reranker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reranker, "SHAPES", {"small": (2, 2, 8)})
    folder = tmp_path / "reranker"
    reranker.write("small", folder)
    config = read_checkpoint(Folder(folder, "reranker")).encoder.config
    assert (config.task, config.num_heads, config.hidden_size) == ("classification", (2, 2), 8)
    assert config.vocab_size == network.VOCABULARY
    with pytest.raises(FileExistsError):
        reranker.write("small", folder)
