"""Texts to vectors in one actor: the service's engine without HTTP, so the same vectors to the bit; it knows no Ray."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from deploy.bulk.corpus import EMBEDDING
from model.artifact import Manifest
from polyhead import Engine
from service.errors import InferenceFailed
from service.inference.backend import Float32Array
from service.requests.plan import choose_prompt
from service.runner import Runner
from service.settings import Settings

TEXTS = 1024  # given to the engine at once: enough to find texts of equal length


def check_choices(manifest: Manifest, *, dimensions: int | None, prompt_name: str | None) -> None:
    """Refuses what `TextEncoder.load` could not encode with.

    Raises:
        ServiceError: the model has no such prompt.
        ValueError: it is no embedder, or has not that many dimensions.
    """
    if manifest.task != "embedding":
        raise ValueError(f"{manifest.model} is for {manifest.task.replace('_', '-')}: only an embedder gives vectors")
    choose_prompt(manifest.defaults, name=prompt_name, text=None)
    size = manifest.config.embedding_size
    if dimensions is not None and not 1 <= dimensions <= size:
        raise ValueError(f"dimensions is {dimensions}: this model has {size}")


class TextEncoder:
    """Encodes lists of texts.

    Attributes:
        dimensions: of a vector.
    """

    def __init__(
        self, engine: Engine, *, dimensions: int, normalize: bool = True, prompt_name: str | None = None
    ) -> None:
        self.dimensions = dimensions
        self._engine = engine
        self._normalize = normalize
        self._prompt_name = prompt_name

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        provider: str = "cpu",
        threads: int = 1,
        dimensions: int | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        max_batch_tokens: int = 0,
    ) -> "TextEncoder":
        """Verifies and loads an artifact.

        Args:
            directory: of the artifact.
            provider: `cpu` or `cuda`.
            threads: of one run.
            dimensions: how many to keep; None is all.
            normalize: whether each vector gets length 1.
            prompt_name: one of the model's prompts; None is its default, if it has one.
            max_batch_tokens: most tokens in one run, padding included; 0 is what the service takes there.

        Raises:
            ArtifactError: the directory is no artifact, or not the one its manifest describes.
        """
        settings = Settings.model_construct(
            model=directory,
            provider=provider,
            workers=1,  # an actor a core
            intra_op_threads=threads,
            max_batch_tokens=max_batch_tokens,
            max_queue_delay=math.inf,
        )
        engine = Engine(Runner.load(directory, settings))
        size = dimensions or engine.dimensions
        return cls(engine, dimensions=size, normalize=normalize, prompt_name=prompt_name)

    def encode(self, texts: Sequence[str]) -> Float32Array:
        """Vectors [N, dimensions] of N texts, in their order.

        Raises:
            InferenceFailed: a vector is not finite.
        """
        encoded = self._engine.encode(
            list(texts), dimensions=self.dimensions, normalize=self._normalize, prompt_name=self._prompt_name
        )
        return np.asarray(encoded.embeddings, dtype=np.float32)

    def add_vectors(self, rows: pa.Table, text_column: str) -> tuple[pa.Table, list[int]]:
        """A table with vectors, and the places of the rows whose text the model could not encode.

        Args:
            rows: a row without a text gets no vector. If there are vectors already, only what lacks one is encoded.
            text_column: the column of texts.
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
                failed += [at for at, text in zip(places, texts, strict=True) if not self._fill(vectors[at], text)]
        is_there[wanted] = True
        is_there[failed] = False
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.reshape(-1)), self.dimensions, mask=pa.array(~is_there)
        )
        return rows.append_column(EMBEDDING, column), [int(place) for place in failed]

    def _fill(self, row: Float32Array, text: str) -> bool:
        try:
            row[:] = self.encode([text])[0]
        except InferenceFailed:
            return False
        return True

    def close(self) -> None:
        """Ends the engine's threads."""
        self._engine.close()
