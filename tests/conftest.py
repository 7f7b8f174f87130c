"""Fixtures that several packages' tests share: checkpoints, artifacts and a server, made once a run."""

import asyncio
import gc
import importlib
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Read when torch is imported. Its threads would spin while they wait for each other, and ONNX Runtime's in the
# same process take the cores from them: verifying a tiny network takes ten times as long so, on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hypothesis
import numpy as np
import pytest

from tests.disk_cache import kept
from tests.service.process import ServerProcess

if TYPE_CHECKING:  # seconds to import, and half the tests need none of them
    from tokenizers import Tokenizer

    from export.checkpoint import Checkpoint
    from service.settings import Settings
    from tests.command import Run
    from tests.task_artifacts import TaskArtifact

# The same examples in every run, more of them in continuous integration (CI=true). None has a time limit: machines that
# run tests are busy.
_PATIENT = hypothesis.settings(derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("local", _PATIENT, max_examples=25)
hypothesis.settings.register_profile("ci", _PATIENT, max_examples=50)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


COROUTINE_LIMIT = 60.0  # seconds after which a test is broken, not slow

gc.disable()  # until tests are imported: it finds nothing then, and is a sixth of that time


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Lets the garbage collector run again, in the processes that run tests and in the one that hands them out."""
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), COROUTINE_LIMIT))
    return True


@pytest.fixture(autouse=True, scope="module")
def frozen_heap() -> None:
    """Lets the garbage collector look only at what this module makes: going through all that the run has imported
    takes it a second, in whatever test it happens, and some measure time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def kept_traces() -> Iterator[None]:
    """Loads graphs that an earlier run traced, where the tests collected have anything to do with torch.

    The exporter's table of operators is made once a process, and not for every trace, which takes most of a second.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "torch" in sys.modules:
            import torch
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            from tests.kept_traces import keeping

            patch.setattr(torch.onnx, "export", keeping(torch.onnx.export))
            patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


@pytest.fixture
def receive() -> Iterator[Callable[[int], None]]:
    """Calls the handler that is installed for a signal. A real signal would also reach the tests' own process.

    Handlers are a fresh process's until then: shells have SIGINT ignored in the background, and `nohup` SIGHUP.
    """
    fresh: dict[int, Any] = dict.fromkeys((signal.SIGTERM, signal.SIGHUP), signal.SIG_DFL)
    fresh[signal.SIGINT] = signal.default_int_handler
    before = {number: signal.signal(number, handler) for number, handler in fresh.items()}

    def call(number: int) -> None:
        handler = signal.getsignal(number)
        assert callable(handler), "nothing is installed: the signal would end the process"
        handler(number, None)

    yield call
    for number, earlier in before.items():
        signal.signal(number, earlier)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> "Run":
    """Runs commands of `polyhead`."""
    from tests.command import Run

    return Run(capsys)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> "list[Settings]":
    """The settings of every start of `polyhead serve`, which serves nothing then."""
    seen: list[Settings] = []

    def run(settings: "Settings", **_: object) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr("service.__main__.run", run)
    return seen


@pytest.fixture(scope="session")
def tokenizer() -> "Tokenizer":
    """A WordPiece tokenizer with sixteen words."""
    from tests.networks import tiny_tokenizer

    return tiny_tokenizer()


@pytest.fixture
def tiny_checkpoint(tokenizer: "Tokenizer") -> "Checkpoint":
    """A randomly initialised network: layers differ in heads, one of them has none, and d_k is not d_v."""
    from model.encoder import Encoder
    from tests.networks import TINY, draw_weights, tiny_network

    return tiny_network(draw_weights(Encoder(TINY)), tokenizer)


@pytest.fixture
def bert_folder(tmp_path: Path, tokenizer: "Tokenizer") -> Path:
    """A Hugging Face folder of the BERT family, randomly initialised, with the tensor names of `transformers`."""
    import torch
    from safetensors.torch import save_file
    from transformers import BertConfig, BertModel

    from tests.networks import BERT_CONFIG

    torch.manual_seed(0)
    state = BertModel(BertConfig(**BERT_CONFIG, initializer_range=0.3), add_pooling_layer=False).state_dict()
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(BERT_CONFIG))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def default_checkpoint() -> "Checkpoint":
    """The default model's pretrained weights."""
    from export.checkpoint import read_checkpoint
    from export.sources import find_folder

    return read_checkpoint(find_folder(None))


@pytest.fixture(scope="session")
def default_artifact(request: pytest.FixtureRequest) -> Path:
    """The default model, exported once and kept on disk; do not change it.

    One batch verifies it: tests compare its answers with sentence-transformers, and the image's build goes over the
    whole grid.
    """

    def export(path: Path) -> None:
        from export.exporter import export_artifact
        from tests.task_artifacts import quick_export

        with quick_export():
            export_artifact(request.getfixturevalue("default_checkpoint"), path)

    return kept("default", None, export)


@pytest.fixture(scope="session", params=["onnxruntime", "openvino"])
def engine_artifact(request: pytest.FixtureRequest, default_artifact: Path) -> Path:
    """The default model for each engine; do not change it."""
    if request.param == "onnxruntime":
        return default_artifact
    openvino = pytest.importorskip("openvino")
    from tests.task_artifacts import for_openvino

    surroundings = (default_artifact.name, openvino.__version__)
    return kept("default-openvino", surroundings, lambda path: for_openvino(default_artifact, path, "bf16"))


def _drawn(name: str, make: str, module: str = "tests.task_artifacts", **options: Any) -> Any:
    """A fixture of a randomly initialised network's folder and artifact; do not change them."""

    @pytest.fixture(scope="session", name=name)
    def made() -> "TaskArtifact":
        from tests.task_artifacts import kept_artifact

        return kept_artifact(name, getattr(importlib.import_module(module), make), **options)

    return made


embedder = _drawn("embedder", "make_embedder")
reranker = _drawn("reranker", "make_classifier", labels=("LABEL_0",))
classifier = _drawn("classifier", "make_classifier", labels=("contradiction", "entailment", "neutral"), explains=False)
token_classifier = _drawn("token_classifier", "make_token_classifier", labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))
sparse_encoder = _drawn("sparse_encoder", "make_sparse")
multi_vector_encoder = _drawn("multi_vector_encoder", "make_multi_vector")
# Its queries have 12 tokens, the last of them mask tokens that no one sees.
expanding_encoder = _drawn("expanding_encoder", "make_multi_vector", expansion=12)


# A language model that says yes or no: causal, with grouped queries.
yes_no_reranker = _drawn("yes_no_reranker", "make_yes_no", module="tests.yes_no")


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
