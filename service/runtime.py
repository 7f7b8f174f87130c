"""How many threads run the model, and on what."""

import logging
from dataclasses import dataclass

from model.manifest import Manifest
from model.processor import has_integer_products
from service.machine.cpu import usable_cores
from service.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where the model runs, and with how many threads."""

    provider: str
    workers: int
    intra_op_threads: int


def plan_runtime(settings: Settings) -> Runtime:
    """The threads that the settings ask for. By default a CPU gets a worker for each usable core, a GPU one."""
    workers = settings.workers
    if not workers:
        workers = 1 if settings.provider == "cuda" else max(1, usable_cores() // settings.intra_op_threads)
    elif settings.provider == "cpu":
        _warn_of_too_many(workers, settings.intra_op_threads)
    return Runtime(settings.provider, workers, settings.intra_op_threads)


def warn_of_slow_precision(manifest: Manifest, provider: str) -> None:
    """Warns where another artifact of the same model would be faster."""
    if provider != "cpu":
        return
    if manifest.precision == "int8" and not manifest.fits_16_bits and has_integer_products() is False:
        logger.warning("this int8 artifact is slow on a processor without VNNI, AMX or dot product: export it again")
    if manifest.precision == "fp16":
        logger.warning("fp16 is converted at every step on a CPU and slower than fp32: it is for --provider cuda")


def _warn_of_too_many(workers: int, intra_op_threads: int) -> None:
    cores = usable_cores()
    if workers * intra_op_threads > cores:
        logger.warning(
            "%d workers with %d threads compete for %d usable cores: set --workers %d, or 0 to have it chosen",
            *(workers, intra_op_threads, cores, max(1, cores // intra_op_threads)),
        )
