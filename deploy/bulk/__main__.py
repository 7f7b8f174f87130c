"""`python -m deploy.bulk --model DIR --input CORPUS --output FOLDER` encodes Parquet files, from where it was ended."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports by default, and looks here when it is imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # an actor has one core

try:
    import ray
    from pyarrow.fs import FileSystem
except ImportError as error:
    sys.exit(f"python -m deploy.bulk: {error.name} is missing: install the bulk extra, pip install '.[cpu,bulk]'")

from deploy.bulk.encoder import MAX_BATCH_TOKENS
from deploy.bulk.pipeline import Corpus, WrongCorpus, count_rows, encode_corpus
from deploy.bulk.record import AnotherRun, Record
from model.artifact import Artifact, ArtifactError
from service.errors import ServiceError
from service.machine.cpu import usable_cores
from service.requests.prompts import choose_prompt

BESIDE = 2  # cores that a pipeline holds beside the encoders'; with fewer it would wait for itself for ever
CHECKPOINT = ".checkpoint"  # added to the output's name


def main(arguments: Sequence[str] | None = None) -> int:
    """Encodes; returns the exit code."""
    options = _parse(arguments)
    try:
        rows = _run(options)
    except (AnotherRun, ArtifactError, OSError, ServiceError, ValueError, WrongCorpus) as error:
        sys.stderr.write(f"python -m deploy.bulk: {error}\n")
        return 1
    sys.stdout.write(f"{options.output} holds {rows} rows\n")
    return 0


def _run(options: argparse.Namespace) -> int:
    output = _uri(options.output)
    choices = {"prompt_name": options.prompt_name, "dimensions": options.dimensions, "normalize": options.normalize}
    manifest = Artifact.open(options.model).manifest
    choose_prompt(manifest.defaults, name=options.prompt_name, text=None)
    columns = {"text_column": options.text_column, "id_column": options.id_column}
    Record.of(manifest, **choices, **columns).claim(*FileSystem.from_uri(output))
    corpus = Corpus(tuple(map(_uri, options.input)), output, output + CHECKPOINT, **columns)
    room = _start_ray(options.address, "GPU" if options.gpu else "CPU")
    encode_corpus(
        corpus,
        options.model.resolve(),
        workers=options.workers or room,
        gpus=1 if options.gpu else 0,
        provider="cuda" if options.gpu else "cpu",
        max_batch_tokens=options.max_batch_tokens,
        **choices,
    )
    return count_rows(output)


def _start_ray(address: str | None, kind: str) -> int:
    """Joins a cluster, or starts one of this machine alone, which listens for no other.

    Returns:
        How many actors there is room for: one a core, or a GPU.

    Raises:
        ValueError: the cluster has too little for a pipeline to move at all.
    """
    if address is None:
        cores = usable_cores()
        # Reading, and leaving out what is done, each hold a core of Ray's count while they hardly use one.
        ray.init(num_cpus=cores + BESIDE, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
        return cores if kind == "CPU" else int(ray.cluster_resources().get(kind, 0))
    ray.init(address=address, log_to_driver=False)
    found = {name: int(ray.cluster_resources().get(name, 0)) for name in ("CPU", kind)}
    if found["CPU"] <= BESIDE or not found[kind]:
        raise ValueError(f"the cluster has {found}; needed are {BESIDE + 1} CPUs, and a GPU with --gpu")
    return found[kind]


def _uri(place: str) -> str:
    return place.rstrip("/") if "://" in place else Path(place).resolve().as_uri()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.bulk", description="Encode a corpus of Parquet files.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="artifact, at this path on every node")
    parser.add_argument("--input", nargs="+", required=True, metavar="PATH", help="Parquet files or folders, or URIs")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="for the result; a URI works, too")
    parser.add_argument("--id-column", default="id", help="a value of its own in every row; %(default)s")
    parser.add_argument("--text-column", default="text", help="what is encoded; %(default)s")
    parser.add_argument("--prompt-name", help="one of the model's prompts; its default unless named")
    parser.add_argument("--dimensions", type=int, help="keep the first so many")
    parser.add_argument(
        "--no-normalize", dest="normalize", action="store_false", help="vectors as the model gives them"
    )
    parser.add_argument("--max-batch-tokens", type=int, default=MAX_BATCH_TOKENS, help="in one run; %(default)s")
    parser.add_argument("--workers", type=int, default=0, help="actors at most; one a core, or a GPU, unless said")
    parser.add_argument("--gpu", action="store_true", help="an actor a GPU")
    parser.add_argument("--address", help="of a Ray cluster; without it, this machine alone")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
