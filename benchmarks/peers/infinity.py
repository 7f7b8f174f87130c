"""Infinity as a peer: its server, with its torch engine in fp32."""

from pathlib import Path

from benchmarks.lib.server import Server, free_port, started
from benchmarks.peers.environments import INFINITY
from benchmarks.peers.process import QUIET
from benchmarks.peers.run import Peers

INFINITY_FLAGS = ("--bettertransformer", "--no-bettertransformer")  # the first is its default


def start_infinity(peers: Peers, weights: Path, flag: str) -> Server:
    """Its server on a checkpoint, with or without BetterTransformer, until the run ends."""
    python, port = peers.prepare(INFINITY), free_port()
    flags = f"--engine torch --device cpu --dtype float32 --host 127.0.0.1 --port {port} --log-level error {flag}"
    flags += " --no-model-warmup"  # it measures itself on long texts for a minute; every round here is warm anyway
    command = [str(python.with_name("infinity_emb")), "v2", *flags.split(), "--model-id", str(weights)]
    environment = {**QUIET, "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    return peers.stack.enter_context(started(command, port, "/health", environment))
