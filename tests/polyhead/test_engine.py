"""The engine as programs use it, and what the package offers."""

import asyncio
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, get_type_hints
from weakref import ref
from xml.etree import ElementTree

import numpy as np
import pytest

import polyhead
from export.sources import Folder
from model.artifact import ArtifactError
from polyhead import Engine, models, public
from polyhead.models import Wanted
from service.errors import Invalid
from service.local.options import AttentionOptions
from tests.task_artifacts import TaskArtifact

A, B = "a 1 b", "9 b c a"


@pytest.fixture(scope="module")
def engine(embedder: TaskArtifact) -> Iterator[Engine]:
    with Engine.load(embedder.artifact, workers=1) as loaded:
        yield loaded


def test_a_checkpoint_is_exported_once_into_the_cache(
    embedder: TaskArtifact, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYHEAD_CACHE", str(tmp_path))
    exports: list[Path] = []

    def export(_: Wanted, __: Folder, target: Path) -> None:  # a whole one is made in `test_serve.py`
        exports.append(Path(shutil.copytree(embedder.artifact, target)))

    monkeypatch.setattr(models, "_export", export)
    for _ in range(2):
        with Engine.load(str(embedder.folder), workers=1, precision="fp32") as made:
            np.testing.assert_allclose(made.encode([A]).embeddings, engine.encode([A]).embeddings, rtol=0, atol=1e-6)
        assert exports == [folder for folder in tmp_path.iterdir() if folder.is_dir()]


def test_an_artifact_has_the_precision_that_it_has(embedder: TaskArtifact) -> None:
    with pytest.raises(ArtifactError, match="is an artifact in fp32, not in int8"):
        Engine.load(embedder.artifact, precision="int8")
    unknown: Any = "gpu"
    with pytest.raises(ArtifactError, match="provider is 'gpu': expected one of cpu, cuda"):
        Engine.load(embedder.artifact, provider=unknown)
    with pytest.raises(ArtifactError, match="precision is 'gpu': expected one of fp32, "):
        Engine.load("somebody/a-model", precision=unknown)


@pytest.mark.parametrize("workers", [-1, 1025, 1.5, 2.0, "2"])
def test_it_says_how_many_workers_there_can_be(embedder: TaskArtifact, workers: int) -> None:
    with pytest.raises(Invalid, match="workers: expected a whole number from 0 to 1024"):
        Engine.load(embedder.artifact, workers=workers)


def test_it_says_how_texts_are_read(engine: Engine) -> None:
    (read,) = engine.tokenize(A)
    assert (read.tokens[1:-1], len(read.ids)) == (A.split(), len(read.tokens))
    assert [A[start:end] for start, end in read.offsets[1:-1]] == A.split()
    np.testing.assert_array_equal(engine.encode([read.ids]).embeddings, engine.encode([A]).embeddings)
    assert engine.encode([A]).embeddings.shape == (1, engine.dimensions)
    assert engine.encode(["a " * 1000]).items[0]["tokens"] == engine.max_tokens


def test_an_event_loop_goes_on_meanwhile(engine: Engine) -> None:
    async def both() -> None:
        found = await asyncio.gather(*(engine.aencode([text], dimensions=3) for text in (A, B)))
        for text, encoded in zip((A, B), found, strict=True):
            np.testing.assert_array_equal(encoded.embeddings, engine.encode([text], dimensions=3).embeddings)
        wrong: Any = [A, None]
        with pytest.raises(ValueError, match=r"inputs\[1\]: expected a text"):
            await engine.aencode(wrong)
        done: list[int] = []
        await engine.aencode([A, B], progress=done.append)
        assert sum(done) == 2

    asyncio.run(both())


def test_another_process_loads_it_by_its_folder(engine: Engine) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for text in (A, B):  # a function of this file would have the process import all that the file does
            found = pool.submit(Engine.score, engine, text, B).result()
            np.testing.assert_array_equal(found, engine.score(text, B))


def test_a_copy_in_this_process_is_the_engine_itself(embedder: TaskArtifact) -> None:
    earlier, engine = (Engine.load(embedder.artifact, workers=2) for _ in range(2))
    earlier.close()
    assert deepcopy(engine) is engine
    sent = pickle.dumps(engine)
    engine.close()
    with pickle.loads(sent) as other:  # noqa: S301 - our own
        assert other is not engine
        assert len(other.encode([A]).embeddings) == 1
    kept = ref(pickle.loads(sent))()  # noqa: S301 - likewise
    assert kept is not None, "the next task of a process pool would load it again"
    kept.close()


FIRST_ROW: AttentionOptions = {"queries": "cls", "exclude_special": True}


@pytest.mark.parametrize("attention", [{"layers": [0]}, {"reduce": "rollout"}, FIRST_ROW | {"level": "word"}])
def test_a_notebook_shows_a_head(engine: Engine, attention: AttentionOptions) -> None:
    encoded = engine.encode(["a <b> 1"], attention=attention)
    drawn = ElementTree.fromstring(encoded._repr_html_() or "")  # noqa: S314 - our own
    texts = ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert re.match("Attention", texts[0])
    entry = encoded.attention[0]
    labels = entry["words"] if "words" in entry else entry["tokens"]
    assert texts[1:] == [*(["first"] if "queries" in attention else labels), *labels]
    images = [image.attrib["href"] for image in drawn.iter("{http://www.w3.org/2000/svg}image")]
    assert images
    assert all(image.startswith("data:image/png;base64,") for image in images)


def test_a_notebook_shows_a_comparison_and_nothing_without_attention(engine: Engine) -> None:
    assert "Similarity" in engine.explain(A, B)._repr_html_()
    assert engine.encode([A])._repr_html_() is None
    assert engine.encode([A], attention={"form": "stats"})._repr_html_() is None


@pytest.mark.parametrize("level", ["token", "word"])
def test_a_notebook_shows_as_text_what_has_no_cells(engine: Engine, level: Literal["token", "word"]) -> None:
    encoded = engine.encode([""], attention={"level": level, "exclude_special": True})
    assert encoded.attention[0][f"{level}s"] == []
    assert encoded._repr_html_() is None


def test_results_can_be_looked_for_in_a_list(engine: Engine) -> None:
    for call in (lambda: engine.encode([A, B]), lambda: engine.explain(A, B), lambda: engine.explain(A, B).a):
        first, second = call(), call()
        assert second in [first, second]
        assert len({first, second}) == 2


def test_what_calls_raise_and_return_can_be_imported() -> None:
    raised = re.findall(r"`([A-Z]\w+)`", (Engine.__doc__ or "").split("\n\n")[2])
    assert {"Invalid", "NotReady", "WrongTask"} <= {*raised} - {"ValueError"} <= {*polyhead.__all__}
    returned = [get_type_hints(call)["return"] for call in (Engine.explain, Engine.explain_score)]
    assert all(getattr(polyhead, one.__name__) is one for one in returned)


def test_public_names_are_those_of_the_packages_below() -> None:
    assert all(getattr(polyhead, name) is getattr(public, name) for name in dir(polyhead))
    with pytest.raises(AttributeError, match="no attribute 'Motor'; it has ArtifactError, Encoded, Engine"):
        getattr(polyhead, "Motor")  # noqa: B009 - a type checker knows that it is not there


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        ("from polyhead.cli import main; main(['--help'])", {"numpy", "onnxruntime", "pydantic", "torch"}),
        ("import polyhead.serve, polyhead.tune", {"torch"}),
    ],
    ids=["help", "serving"],
)
def test_what_needs_no_library_loads_none(program: str, unwanted: set[str]) -> None:
    program = f"import sys; {program}; sys.stderr.write(str({unwanted} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stderr == "set()"
