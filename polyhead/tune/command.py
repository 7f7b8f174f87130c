"""`polyhead tune`: which use of this machine's cores suits this artifact.

Each way to share out the cores (processes, workers, threads) serves the artifact for some seconds, to a client on the
same machine that sends texts of natural lengths over HTTP. The answer is a table, and settings to copy: for the most
texts a second, and for the shortest wait of a text that comes alone.
"""

import argparse
import asyncio
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from model.artifact import TOKENIZER, Artifact
from model.manifest import ArtifactError
from polyhead.artifact_option import add_artifact, chosen_artifact
from polyhead.tune.layouts import Layout, Measurement, layouts, least_latency, most_throughput
from polyhead.tune.server import ServerFailure, served
from polyhead.tune.traffic import RefusedRequest, Text, measure, natural_texts
from service.machine.cpu import usable_cores

PROGRAM = "polyhead tune"
INTERRUPTED = 130  # what shells expect after Ctrl-C
TEXTS = 512
BUSY_CLIENT = 0.8  # of a core: above it, a layout's figure may be the client's


def measure_layout(model: Path, layout: Layout, texts: Sequence[Text], seconds: float, cores: int) -> Measurement:
    """Serves one layout, and asks it for about so many seconds."""
    allowed = frozenset(sorted(os.sched_getaffinity(0))[:cores]) if hasattr(os, "sched_getaffinity") else None
    with served(model, layout, allowed) as address:
        alone, together = asyncio.run(measure(address, texts, seconds))
    p50, p95 = np.quantile(alone.seconds, [0.5, 0.95]).tolist()
    rates = (together.texts_per_second, together.tokens_per_second)
    return Measurement(layout, *rates, p50, p95, together.client_share)


def report(measured: Sequence[Measurement]) -> str:
    """The table, and the settings for either aim."""
    lines = [f"{'processes':>9}{'workers':>9}{'threads':>9}{'texts/s':>10}{'tokens/s':>10}{'p50 ms':>9}{'p95 ms':>9}"]
    lines += [
        f"{one.layout.processes:>9}{one.layout.workers:>9}{one.layout.intra_op_threads:>9}{one.texts_per_second:>10.0f}"
        f"{one.tokens_per_second:>10.0f}{1e3 * one.latency_p50:>9.2f}{1e3 * one.latency_p95:>9.2f}"
        for one in measured
    ]
    for aim, layout in (("throughput", most_throughput(measured)), ("latency", least_latency(measured))):
        settings = " ".join(f"{name}={value}" for name, value in layout.variables.items())
        lines.append(f"for {aim}: {settings}")
    if max(one.client_share for one in measured) > BUSY_CLIENT:
        lines.append("the client had no core to spare: with several machines that send, more may come out")
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    """The command line, described."""
    made = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.split("\n\n")[1] if __doc__ else None)
    add_artifact(made, "to measure")
    made.add_argument("--seconds", type=float, default=6.0, help="time for each way, besides its start (default: 6)")
    made.add_argument("--cores", type=int, help="cores to share out (default: those this process may use)")
    return made


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    made = parser()
    options = made.parse_args(arguments)
    if not 0 < options.seconds < math.inf:
        made.error("--seconds must be above 0")
    if options.cores is not None and not 1 <= options.cores <= usable_cores():
        made.error(f"--cores must be from 1 to {usable_cores()}, those this process may use")
    try:
        measured = _measure_all(chosen_artifact(options), options.cores or usable_cores(), options.seconds)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except (ArtifactError, ServerFailure, RefusedRequest, OSError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return 1
    sys.stdout.write(report(measured))
    return 0


def _measure_all(model: Path, cores: int, seconds: float) -> list[Measurement]:
    manifest = Artifact.open(model).manifest
    texts = natural_texts(model / TOKENIZER, TEXTS, manifest.max_sequence_length)
    measured = []
    for number, layout in enumerate(ways := layouts(cores), 1):
        sys.stderr.write(
            f"{number} of {len(ways)}: {layout.processes} processes, {layout.workers} workers, "
            f"{layout.intra_op_threads} threads\n"
        )
        measured.append(measure_layout(model, layout, texts, seconds, cores))
    return measured
