from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from torch.nn.functional import cosine_similarity

from export.exporter import export_artifact
from export.pruning.driver import prune
from export.pruning.removal import apply_removal
from export.texts import HELD_OUT_TEXTS
from tests.task_artifacts import quick_export
from tests.train.conftest import read_back
from train.batching import tokenize_texts
from train.commands import HealSettings
from train.embedding import embed_ids
from train.errors import RunError
from train.heal import Heal
from train.settings import RunSettings


def heal(folder: Path, texts: Path, **settings: Any) -> Heal:
    asked = HealSettings(model=str(folder), texts=(texts,), fitting_texts=0, **settings)
    return Heal(asked, RunSettings(output=folder.with_name("healed")))


def test_to_a_quality_as_many_go_as_it_allows(tiny_folder: Path, text_file: Path) -> None:
    whole = read_back(tiny_folder)
    few, many = (heal(tiny_folder, text_file, lose=lose).described["removed"] for lose in (3.0, 30.0))
    assert 0 < len(few) < len(many)
    texts = tokenize_texts(HELD_OUT_TEXTS.read_text().splitlines(), whole.tokenizer, whole.max_sequence_length)
    encoders = whole.encoder, apply_removal(whole.encoder, few), apply_removal(whole.encoder, many)
    vectors = [embed_ids(encoder, texts, torch.device("cpu")) for encoder in encoders]
    lost = [100 - 100 * float(cosine_similarity(vectors[0], other).mean()) for other in vectors[1:]]
    assert lost[0] <= 3.0 + 1e-3
    assert lost[0] < lost[1] <= 30.0 + 1e-3


def test_rated_pairs_choose_by_loss_gradient(tiny_folder: Path, text_file: Path, rated_file: Path) -> None:
    assert heal(tiny_folder, text_file, lose=99.0, pairs=rated_file).described["chosen_by"] == "loss_gradient"


def test_no_head_goes(tiny_folder: Path, text_file: Path) -> None:
    with pytest.raises(RunError, match="no head is missing, and none was asked to be removed"):
        heal(tiny_folder, text_file)
    with pytest.raises(RunError, match=r"--remove 0.01 of \d heads is none: give a larger share"):
        heal(tiny_folder, text_file, remove=0.01)
    found = Mock(return_value=Mock(record={"removed": [], "definition": "leave_one_out"}))
    with patch("train.heal.prune", found), pytest.raises(RunError, match="no head can go for 1e-09 points: allow more"):
        heal(tiny_folder, text_file, lose=1e-9)


def test_heads_of_a_file_go_once_each_and_have_to_be_there(tiny_folder: Path, text_file: Path, tmp_path: Path) -> None:
    (heads := tmp_path / "heads.json").write_text('{"removed": [[1, 0], [0, 1], [1, 0]]}')
    assert heal(tiny_folder, text_file, heads=heads).described["removed"] == [[1, 0], [0, 1]]
    for removed, message in (
        ('{"removed": [[7, 0]]}', "removes head 0 of layer 7"),
        ('{"removed": []}', "removes no head"),
        ('{"removed": 1}', r"has no list `removed` of \[layer, head\]"),
    ):
        heads.write_text(removed)
        with pytest.raises(RunError, match=message):
            heal(tiny_folder, text_file, heads=heads)


def test_an_artifact_of_a_folder_is_healed_of_what_it_lost(tiny_folder: Path, text_file: Path, tmp_path: Path) -> None:
    pruned = prune(read_back(tiny_folder), share=0.4, with_curve=False)
    with quick_export():
        export_artifact(pruned.checkpoint, tmp_path / "pruned", explains=False, pruning=pruned.record)
    healed = heal(tmp_path / "pruned", text_file, weights_from=str(tiny_folder))
    assert healed.described["removed"] == pruned.record["removed"]
