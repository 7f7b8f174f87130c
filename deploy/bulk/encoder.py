"""Many texts to vectors on one thread: tokenised, sorted by length, run in batches of similar lengths.

The same tokenizer, graph and normalisation as behind `POST /encode`, so the same vectors to the bit. Without callers
who wait there is no queue and no batcher. It knows neither Ray nor Parquet.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from model.artifact import TOKENIZER, Artifact
from service.answer import make_vectors
from service.backend import Backend, Float32Array
from service.jobs import Job, collate
from service.onnx_backend import OnnxBackend
from service.prompts import Prompt, choose_prompt
from service.tokenizer import Tokenizer

MAX_BATCH_TOKENS = 512  # the service's own default, for the same reason: README, Performance


class TextEncoder:
    """Encodes lists of texts.

    Attributes:
        dimensions: of a vector.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        *,
        dimensions: int,
        normalize: bool = True,
        prompt: Prompt | None = None,
        max_batch_tokens: int = MAX_BATCH_TOKENS,
    ) -> None:
        self.dimensions = dimensions
        self._backend = backend
        self._tokenizer = tokenizer
        self._normalize = normalize
        self._prompt = prompt
        self._max_batch_tokens = max_batch_tokens

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
        artifact = Artifact.open(directory)
        manifest = artifact.manifest
        size = manifest.config.embedding_size
        if dimensions is not None and not 1 <= dimensions <= size:
            raise ValueError(f"dimensions is {dimensions}: this model has {size}")
        return cls(
            OnnxBackend(artifact, intra_op_threads=threads, provider=provider),
            Tokenizer.load(artifact.path(TOKENIZER), manifest.max_sequence_length, threads=1),
            dimensions=dimensions or size,
            normalize=normalize,
            prompt=choose_prompt(manifest.defaults, name=prompt_name, text=None),
            max_batch_tokens=max_batch_tokens,
        )

    def encode(self, texts: Sequence[str]) -> Float32Array:
        """Vectors [N, dimensions] of N texts, in their order.

        Raises:
            InferenceFailed: a vector is not finite.
        """
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        given = texts if self._prompt is None else self._prompt.before(texts)
        jobs = [Job(item.input_ids) for item in self._tokenizer.encode_now(given)]
        for batch in self._plan(jobs):
            output = self._backend.run(collate([jobs[index] for index in batch]))
            vectors[batch] = make_vectors(output.pooled, dimensions=self.dimensions, normalize=self._normalize)
        return vectors

    def _plan(self, jobs: Sequence[Job]) -> Iterator[list[int]]:
        """Places of the jobs, longest first, as many to a batch as fit; the longest alone decides its padding."""
        batch: list[int] = []
        for index in sorted(range(len(jobs)), key=lambda index: -len(jobs[index].input_ids)):
            longest = len(jobs[batch[0]].input_ids) if batch else 0
            if batch and (len(batch) + 1) * longest > self._max_batch_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch
