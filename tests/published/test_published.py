"""Models that people download: each, small and random in its published layout, equals its original, or is refused
with the reason that the table names.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from safetensors.numpy import load_file

from export.checkpoint import Checkpoint, read_checkpoint
from export.cli import parser
from export.errors import ExportError
from export.exporter import export_artifact
from export.original import compare_with_original
from export.sources import Folder, read_json
from export.verify import Case
from tests.export.conftest import change_json
from tests.jina_bert_reference import compare
from tests.published.build import Published, build, table
from tests.published.page import PAGE, page

ROWS = table()
QUICK = [pytest.param(row, marks=() if row["quick"] else pytest.mark.exhaustive, id=row.id) for row in ROWS]


def read(row: Published, folder: Path) -> Checkpoint:
    """The folder as the row's command reads it."""
    options = parser().parse_args([row.id, "--output", "there", *(row["options"] or ())])
    choices: dict[str, Any] = {name: getattr(options, name) for name in ("task", "adapter", "instruction", "pooling")}
    return read_checkpoint(Folder(folder, row.id, allows_pickles=options.allow_pickled_weights), **choices)


@pytest.mark.parametrize("row", QUICK)
def test_equals_its_original_or_is_refused(row: Published, tmp_path: Path) -> None:
    folder = tmp_path / "published"
    library = build(row, folder)
    if row["result"] == "refused":
        with pytest.raises(ExportError) as caught:
            read(row, folder)
        assert row["message"] in str(caught.value)
        return
    checkpoint = read(row, folder)
    assert ("vector_weight" in checkpoint.further_outputs) == bool(row["token_layers"])
    assert ("query_weights" in checkpoint.further_outputs) == bool(row["router"])
    if row["written_out"]:
        tensors = load_file(folder / "model.safetensors")
        compare(checkpoint.encoder, read_json(folder / "config.json"), tensors, [25, 1], 25)
        return
    is_equal = row["result"] != "exported"
    if row["adapters"] or row["lora"]:  # the library's copy has the weights that these adapters make
        checkpoint = replace(checkpoint, source=replace(checkpoint.source, adapter=None))
    compared = compare_with_original(checkpoint, library if is_equal else folder)
    assert compared["compared"] == is_equal, compared
    assert not is_equal or not [one for one in ("tokens", "answer") if one in compared and not row["unseen"]], compared


def test_the_words_of_a_query_without_a_network_are_looked_up_behind_no_prompt(tmp_path: Path) -> None:
    row = next(row for row in ROWS if row["router"])
    library = build(row, tmp_path / "published")
    for folder in {library, tmp_path / "published"}:
        change_json(folder / "config_sentence_transformers.json", prompts={"query": "a cat ", "document": "the "})
    assert "answer" not in compare_with_original(read(row, tmp_path / "published"), library)


@pytest.mark.exhaustive
@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in ROWS if row["result"] != "refused"])
def test_is_exported(row: Published, tmp_path: Path) -> None:
    build(row, tmp_path / "published")
    checkpoint = read(row, tmp_path / "published")
    layers = checkpoint.encoder.config.num_layers
    with patch("export.verify.grid", lambda _: [Case((7, 3), 7, (0, 1)[:layers])]):
        manifest = export_artifact(checkpoint, tmp_path / "artifact", explains=False)
    assert sum(manifest.fused_attention.values()) == (0 if row["layout"] == "table" else layers)


def test_the_page_says_what_the_table_says() -> None:
    assert len(ROWS) >= 60
    assert len({row.id for row in ROWS}) == len(ROWS)
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.published.page writes it"
