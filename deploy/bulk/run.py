"""A run from its command line to its exit code: the checks before Ray starts, Ray itself, and the summary."""

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports by default, and looks here when it is imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # an actor has one core

import ray
from ray.exceptions import RayError

from deploy.bulk.corpus import Columns, WrongCorpus, check_source, find_sources, uri_of
from deploy.bulk.encoder import TextEncoder, check_choices
from deploy.bulk.output import SUMMARY, AnotherRun, Output
from deploy.bulk.pipeline import Load, encode_corpus, quiet, shown, start_tally
from export.command import INTERRUPTED
from model.artifact import Artifact, ArtifactError, identity
from service.errors import ServiceError
from service.machine import usable_cores


def run(options: argparse.Namespace, load: Load = TextEncoder.load) -> int:
    """Encodes; returns the exit code: 1 if it could not, or if a row failed."""
    try:
        summary = _run(options, load)
    except (AnotherRun, ArtifactError, OSError, ServiceError, ValueError, WrongCorpus) as error:
        sys.stderr.write(f"python -m deploy.bulk: {error}\n")
        return 1
    except RayError as error:
        sys.stderr.write(f"python -m deploy.bulk: {error}\nRay's own lines are in {_log()}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command goes on from here\n")
        return INTERRUPTED
    sys.stdout.write(f"{options.output} holds {describe(summary)}\n")
    return 1 if summary["failed"] else 0


def describe(summary: Mapping[str, Any]) -> str:
    """A run in one line."""
    text = "{rows} rows; {encoded} texts encoded in {seconds} s ({texts_per_second} texts/s)".format_map(summary)
    others = {
        "without text": summary["without_text"],
        "removed that their files no longer have": summary["removed"],
        "kept of files that are not in this corpus": summary["of_other_files"],
        f"failed, the first: {', '.join(map(str, summary['failed_ids'][:5]))}": summary["failed"],
    }
    return text + "".join(f"; {count} rows {what}" for what, count in others.items() if count)


def _run(options: argparse.Namespace, load: Load) -> dict[str, Any]:
    """Encodes; a run in figures, as it is written next to the output."""
    began = time.monotonic()
    output, columns = Output(uri_of(options.output)), Columns(options.id_column, options.text_column)
    choices = {"prompt_name": options.prompt_name, "dimensions": options.dimensions, "normalize": options.normalize}
    manifest = Artifact.open(options.model).manifest
    check_choices(manifest, choices)
    sources = find_sources([uri_of(place) for place in options.input])
    check_source(sources[0], columns)  # what is wrong with all is said before Ray starts
    with output.locked():
        network = {"model": manifest.model, "identity": identity(manifest), "precision": manifest.precision}
        output.claim({**network, **choices, "text_column": columns.text, "id_column": columns.id})
        with quiet(_log()) as terminal, _ray(options.address, "GPU" if options.gpu else "CPU") as room:
            tally = start_tally()
            with shown(tally, sum(source.size for source in sources), terminal):
                names = encode_corpus(
                    sources,
                    columns,
                    options.model.resolve(),
                    output.uri,
                    tally=tally,
                    workers=options.workers or room,
                    provider="cuda" if options.gpu else "cpu",
                    max_batch_tokens=options.max_batch_tokens,
                    load=load,
                    **choices,
                )
            counts, failed_ids = ray.get(tally.read.remote())
        removed, of_other_files = output.sweep(sources, names)
        rows, seconds = output.count_rows(), time.monotonic() - began
        summary = {
            "rows": rows,
            "encoded": counts["encoded"],
            "seconds": round(seconds, 1),
            "texts_per_second": round(counts["encoded"] / seconds, 1),
            "without_text": counts["without_text"],
            "failed": counts["failed"],
            "failed_ids": failed_ids,
            "removed": removed,
            "of_other_files": of_other_files,
        }
        output.write_json(SUMMARY, summary)
    _log().unlink()
    return summary


def _log() -> Path:
    """Where Ray's lines go; what is left there is of a run that failed."""
    return Path(tempfile.gettempdir()) / f"polyhead-bulk-{os.getpid()}.log"


@contextmanager
def _ray(address: str | None, kind: str) -> Iterator[int]:
    """Joins a cluster until the block ends, or starts one of this machine alone, which listens for no other.

    Yields how many actors there is room for: one a core, or a GPU. A cluster without any is a ValueError.
    """
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with ExitStack() as ended:
        folder = ended.enter_context(tempfile.TemporaryDirectory(prefix="polyhead-", ignore_cleanup_errors=True))
        ended.callback(ray.shutdown)
        if address is None:
            ray.init(
                address="local",  # else a cluster that this machine is a node of would be joined
                num_cpus=usable_cores(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,  # Ray leaves its session there
            )
        else:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        found = {name: int(ray.cluster_resources().get(name, 0)) for name in ("CPU", kind)}
        if not all(found.values()):
            raise ValueError(f"the cluster has {found}; needed are a CPU, and a GPU with --gpu")
        yield found[kind]
