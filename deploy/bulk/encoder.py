"""Texts to vectors in one actor: the service's engine without HTTP, so the same vectors to the bit; it knows no Ray."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from deploy.bulk.corpus import EMBEDDING
from model.artifact import Manifest
from polyhead import Engine
from service.errors import InferenceFailed
from service.inference.backend import Float32Array
from service.local.options import read_call
from service.requests.plan import plan_encoding
from service.runner import Runner
from service.settings import Settings

TEXTS = 1024  # given to the engine at once: enough to find texts of equal length


def check_choices(manifest: Manifest, options: Mapping[str, Any]) -> None:
    """Refuses options of `Engine.encode` that the model could not encode with.

    Raises:
        ServiceError: it has no such prompt, or not that many dimensions.
        ValueError: it is no embedder.
    """
    if manifest.task != "embedding":
        raise ValueError(f"{manifest.model} is for {manifest.task.replace('_', '-')}: only an embedder gives vectors")
    plan_encoding(*read_call([""], None, options), manifest)


class TextEncoder:
    """Encodes lists of texts to vectors of `dimensions`, and of length 1 unless `options` say otherwise."""

    def __init__(self, engine: Engine, dimensions: int, **options: Any) -> None:
        self.dimensions = dimensions
        self._engine, self._options = engine, {"normalize": True, **options}

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        provider: str = "cpu",
        max_batch_tokens: int = 0,
        dimensions: int | None = None,
        **options: Any,
    ) -> "TextEncoder":
        """Verifies and loads an artifact; `options` are `Engine.encode`'s.

        Raises:
            ArtifactError: the directory is no artifact, or not the one its manifest describes.
        """
        settings = Settings.model_construct(
            model=directory,
            provider=provider,
            workers=1,  # an actor a core
            intra_op_threads=1,
            max_batch_tokens=max_batch_tokens,
            max_queue_delay=math.inf,
        )
        engine = Engine(Runner.load(directory, settings))
        return cls(engine, dimensions or engine.dimensions, **options)

    def encode(self, texts: Sequence[str]) -> Float32Array:
        """Vectors [N, dimensions] of N texts, in their order.

        Raises:
            InferenceFailed: a vector is not finite.
        """
        encoded = self._engine.encode(list(texts), dimensions=self.dimensions, **self._options)
        return np.asarray(encoded.embeddings, dtype=np.float32)

    def add_vectors(self, rows: pa.Table, text_column: str) -> tuple[pa.Table, list[int]]:
        """A table with vectors, and the places of the rows whose text the model could not encode.

        A row without a text gets no vector. If there are vectors already, only what lacks one is encoded.
        """
        has_text = rows[text_column].is_valid().to_numpy(zero_copy_only=False)
        is_there = np.zeros(len(rows), dtype=bool)
        vectors = np.zeros((len(rows), self.dimensions), dtype=np.float32)
        if EMBEDDING in rows.schema.names:
            known = rows[EMBEDDING].combine_chunks()
            is_there = known.is_valid().to_numpy(zero_copy_only=False).copy()
            vectors[is_there] = known.drop_null().flatten().to_numpy().reshape(-1, self.dimensions)
            rows = rows.drop_columns([EMBEDDING])
        wanted = np.flatnonzero(has_text & ~is_there)
        failed: list[int] = []
        for start in range(0, len(wanted), TEXTS):
            places = wanted[start : start + TEXTS]
            texts = rows[text_column].take(pa.array(places)).to_pylist()
            try:
                vectors[places] = self.encode(texts)
            except InferenceFailed:  # a text that fails costs its own vector alone
                for place, text in zip(places, texts, strict=True):
                    try:
                        vectors[place] = self.encode([text])[0]
                    except InferenceFailed:
                        failed.append(int(place))
        is_there[wanted] = True
        is_there[failed] = False
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.reshape(-1)), self.dimensions, mask=pa.array(~is_there)
        )
        return rows.append_column(EMBEDDING, column), failed

    def close(self) -> None:
        """Ends the engine's threads."""
        self._engine.close()
