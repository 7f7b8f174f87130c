"""Each family from a folder that `transformers` saved to the answer over HTTP, against `transformers` itself."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from export.cli import main
from tests.family_models import MODELS, SERVED, FamilyModel, draw, save
from tests.service.process import ServerProcess
from tests.task_artifacts import quick_export

TOLERANCE = 1e-5
FAST = ("roberta",)  # byte-level BPE; WordPiece is the default model's
LONGEST = 40
TEXTS = [
    *("The cats sat on the mats, unbelievably tokenised.", "lower newest  wider: abc123 naïve café!", "日 word 语 🙂"),
    *("a", "", "the cats sat on a mat and " * 30),
]


@dataclass(frozen=True)
class Served:
    """A family's server, and the same network and tokenizer in `transformers`."""

    server: ServerProcess
    theirs: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast

    def encode(self, **body: Any) -> Any:
        return self.server.post("/encode", {"inputs": TEXTS, **body})

    def tokenise(self, text: str) -> Any:
        options = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
        return self.tokenizer(text, truncation=True, max_length=LONGEST, **options)

    def run(self, text: str) -> Any:
        with torch.inference_mode():
            return self.theirs(torch.tensor([self.tokenise(text)["input_ids"]]), output_attentions=True)


def cases() -> list[Any]:
    models = {model.name: model for model in MODELS}
    return [pytest.param(models[one], id=one, marks=[] if one in FAST else [pytest.mark.exhaustive]) for one in SERVED]


@pytest.fixture(scope="module", params=cases())
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model: FamilyModel = request.param
    made = tmp_path_factory.mktemp(model.name)
    theirs = draw(model)
    folder = save(theirs, model, made / "folder")
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": LONGEST}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    with quick_export():
        assert main([str(folder), "--output", str(made / "artifact"), "--no-explain"]) == 0
    with ServerProcess("service", "--model", str(made / "artifact")) as process:
        yield Served(process.wait_until_ready(), theirs, tokenizer)
        assert process.stop() == 0


def test_embeddings_attention_tokens_and_offsets(served: Served) -> None:
    answer = served.encode(attention={"layers": "all"})
    assert [item["truncated"] for item in answer["items"]] == [False] * 5 + [True]
    for text, embedding, entry in zip(TEXTS, answer["embeddings"], answer["attention"], strict=True):
        expected, found = served.tokenise(text), served.run(text)
        pooled = found.last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(embedding, pooled / pooled.norm(), atol=TOLERANCE, rtol=0, err_msg=text[:40])
        assert entry["tokens"] == expected.tokens()
        assert [tuple(place) for place in entry["offsets"]] == expected["offset_mapping"]
        for maps, reference in zip(entry["weights"], found.attentions, strict=True):
            np.testing.assert_allclose(np.array(maps), reference[0], atol=TOLERANCE, rtol=0, err_msg=text[:40])


def test_special_tokens_are_told_from_the_texts_own(served: Served) -> None:
    answer = served.encode(attention={"exclude_special": True})
    for text, entry in zip(TEXTS, answer["attention"], strict=True):
        kept = ~np.array(served.tokenise(text)["special_tokens_mask"], np.bool_)
        reference: NDArray[np.float32] = served.run(text).attentions[-1][0].numpy()[:, kept][:, :, kept]
        assert np.array(entry["weights"][0]).shape[1:] == reference.shape[1:] or not kept.any()
        if kept.any():
            np.testing.assert_allclose(entry["weights"][0], reference, atol=TOLERANCE, rtol=0)
