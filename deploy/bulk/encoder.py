"""Many texts to vectors in one actor: the service's engine without HTTP, so the same vectors to the bit.

It knows neither Ray nor Parquet.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from polyhead import Engine
from service.inference.backend import Float32Array
from service.requests.prompts import choose_prompt
from service.settings import Settings

MAX_BATCH_TOKENS = 512  # the service's own default, for the same reason: docs/performance.md


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
        max_batch_tokens: int = MAX_BATCH_TOKENS,
    ) -> "TextEncoder":
        """Verifies and loads an artifact.

        Args:
            directory: of the artifact.
            provider: `cpu` or `cuda`.
            threads: of one run.
            dimensions: how many to keep; None is all.
            normalize: whether each vector gets length 1.
            prompt_name: one of the model's prompts; None is its default, if it has one.
            max_batch_tokens: most tokens in one run, padding included.

        Raises:
            ArtifactError: the directory is no artifact, or not the one its manifest describes.
            ServiceError: the model has no such prompt.
            ValueError: the model has not that many dimensions.
        """
        settings = Settings.model_construct(
            model=directory,
            provider=provider,
            workers=1,  # an actor a core
            intra_op_threads=threads,
            max_batch_tokens=max_batch_tokens,
            max_queue_delay=math.inf,
        )
        engine = Engine.load(directory, settings)
        try:
            return cls(
                engine,
                dimensions=_check_dimensions(dimensions, engine.config.embedding_size),
                normalize=normalize,
                prompt_name=_check_prompt(prompt_name, engine),
            )
        except BaseException:
            engine.close()
            raise

    def encode(self, texts: Sequence[str]) -> Float32Array:
        """Vectors [N, dimensions] of N texts, in their order.

        Raises:
            InferenceFailed: a vector is not finite.
        """
        encoded = self._engine.encode(
            list(texts), dimensions=self.dimensions, normalize=self._normalize, prompt_name=self._prompt_name
        )
        return np.asarray(encoded.embeddings, dtype=np.float32)

    def close(self) -> None:
        """Ends the engine's threads."""
        self._engine.close()


def _check_dimensions(wanted: int | None, size: int) -> int:
    if wanted is not None and not 1 <= wanted <= size:
        raise ValueError(f"dimensions is {wanted}: this model has {size}")
    return wanted or size


def _check_prompt(name: str | None, engine: Engine) -> str | None:
    choose_prompt(engine.manifest.defaults, name=name, text=None)
    return name
