"""`training.json`: what was done, with what, by which versions, and how it went."""

import platform
import resource
import sys
from importlib.metadata import version
from typing import Any

from train.progress import Progress
from train.recipe import Recipe
from train.settings import RunSettings

SCHEMA_VERSION = 1
PACKAGES = ("polyhead", "torch", "tokenizers", "safetensors")
KIB = 1024


def describe_run(recipe: Recipe, settings: RunSettings, progress: Progress, *, is_done: bool) -> dict[str, Any]:
    """The record of a run, as JSON types."""
    network = recipe.network()
    return {
        "schema_version": SCHEMA_VERSION,
        "command": recipe.command,
        "is_done": is_done,
        "source": {"id": recipe.like.source.id, "sha256": recipe.like.source.sha256},
        "network": {
            "num_heads": list(network.config.num_heads),
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
        },
        "settings": settings.record(),
        **recipe.described,
        **recipe.findings(),
        "examples": len(recipe.lengths),
        "score": recipe.score,
        "best": {"step": progress.best_step, recipe.score: progress.best},
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "tokens": progress.tokens,
        "tokens_per_second": round(progress.tokens / max(progress.seconds, 1e-9)),
        "peak_memory_mib": peak_memory_mib(),
        "evaluations": progress.evaluations,
        "losses": [{"step": step, "loss": round(loss, 6), "rate": rate} for step, loss, rate in progress.losses],
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def peak_memory_mib() -> int:
    """The most memory that this process held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (KIB * (KIB if sys.platform == "darwin" else 1)))
