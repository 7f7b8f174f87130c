"""Fixtures that several packages' tests share: checkpoints, artifacts and a server, made once a run."""

import gc
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Read when torch is imported. Its threads would spin while they wait for each other, and those of ONNX Runtime in the
# same process take the cores from them: verifying a tiny network takes ten times as long so, on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hypothesis
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from export.checkpoint import Checkpoint, read_checkpoint
from export.exporter import export_artifact
from export.sources import find_folder
from model.artifact import Defaults, Source
from model.encoder import Encoder
from tests.networks import BERT_CONFIG, TINY, WORDS, draw_weights
from tests.service.process import ServerProcess

# The same examples in every run, and no time limit on one: machines that run tests are busy.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what `-m` does not ask for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What wants the machine for itself is long-running, too: `make test` leaves it out."""
    for item in items:
        if item.get_closest_marker("alone"):
            item.add_marker("slow")


@pytest.fixture(autouse=True, scope="module")
def frozen_heap() -> None:
    """Lets the garbage collector look only at what this module makes: going through all that the run has imported
    takes it a second, in whatever test it happens, and some measure time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where the tests run in the background of a shell, which has it ignored there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A WordPiece tokenizer with sixteen words."""
    made = Tokenizer(WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))  # noqa: S106 - a token of the vocabulary
    made.normalizer = BertNormalizer(lowercase=True)
    made.pre_tokenizer = BertPreTokenizer()
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


@pytest.fixture
def tiny_checkpoint(tokenizer: Tokenizer) -> Checkpoint:
    """A drawn network whose layers differ in heads, one of them without any, and whose d_k is not its d_v."""
    return Checkpoint(
        name="tiny",
        source=Source(id="tiny", revision=None, sha256="0" * 64),
        encoder=draw_weights(Encoder(TINY)),
        tokenizer=tokenizer,
        defaults=Defaults(pooling="mean", normalize=True, prompts={}, default_prompt_name=None),
        max_sequence_length=TINY.max_positions,
    )


@pytest.fixture
def bert_folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """A Hugging Face folder of the BERT family with drawn weights, named as `transformers` names them."""
    from transformers import BertConfig, BertModel  # noqa: PLC0415 - seconds to import, few tests need it

    torch.manual_seed(0)
    config = BertConfig(**BERT_CONFIG, initializer_range=0.3)
    state = BertModel(config, add_pooling_layer=False).state_dict()
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(BERT_CONFIG))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def default_checkpoint() -> Checkpoint:
    """The default model's pretrained weights."""
    return read_checkpoint(find_folder(None))


@pytest.fixture(scope="session")
def default_artifact(default_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model, exported once a run; do not change it."""
    directory = tmp_path_factory.mktemp("artifacts") / "default"
    export_artifact(default_checkpoint, directory)
    return directory


@pytest.fixture(scope="session")
def server(default_artifact: Path) -> Iterator[ServerProcess]:
    """The real process on the default model, started once a run, for tests that only ask it something."""
    with ServerProcess("service", "--model", str(default_artifact)) as process:
        yield process.wait_until_ready()
        assert process.stop() == 0


@pytest.fixture
def generator() -> np.random.Generator:
    """Random numbers, the same in every run."""
    return np.random.default_rng(0)
