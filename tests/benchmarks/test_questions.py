import socket
import sys
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import gpu
from benchmarks.attention.claims import NETWORK_SIZE, every_head_count
from benchmarks.attention.faithfulness import METHODS, POOLING, left_out_drops, measure, text_places, token_types
from benchmarks.engine import draw, of_onnx
from benchmarks.lib.command import CannotMeasure
from benchmarks.peers.peers import start_worker
from benchmarks.peers.workers import Task
from benchmarks.service.replicas import nginx
from model.config import EncoderConfig
from model.config_parts import ClassificationSettings
from model.encoder import Encoder
from tests.deploy import tools
from tests.deploy.tools import or_skip
from tests.model.decomposition.frozen_reference import reference_parts
from tests.networks import TINY, draw_weights, vary


def test_every_head_count_runs() -> None:
    with torch.inference_mode():
        (row,) = every_head_count().rows
    assert row["ran"] == NETWORK_SIZE
    assert row["formula_wrong"] == 0
    assert row["largest_difference"] < 1e-5


def test_a_cross_encoders_logit_is_followed_to_the_tokens_of_both_texts() -> None:
    settings = ClassificationSettings(labels=("score",))
    encoder = draw_weights(Encoder(vary(task="classification", task_settings=settings, pooling="cls"))).use("eager")
    pair, one = [2, 7, 9, 3, 11, 8, 3], torch.ones(1)
    assert text_places(pair) == [1, 2, 4, 5]
    types = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    found_types = token_types(encoder, pair)
    assert found_types is not None
    assert torch.equal(found_types, types)
    logit = float(encoder(torch.tensor([pair]), torch.tensor([7]), token_type_ids=types).task_output[0, 0])
    drops = left_out_drops(encoder, pair, one)
    shorter = torch.tensor([[2, 7, 9, 3, 8, 3]]), torch.tensor([6])
    left = float(encoder(*shorter, token_type_ids=types[:, [0, 1, 2, 3, 5, 6]]).task_output[0, 0])
    assert drops[2] == pytest.approx(logit - left, abs=1e-5)
    _, parts = reference_parts(encoder, torch.tensor([pair]), types)
    assert METHODS["through the network"](encoder, pair, one) == pytest.approx(parts[:, 0].numpy(), abs=1e-5)
    assert POOLING not in measure(encoder, [[pair]])


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        vary(gated=True, output_gate=True, num_key_value_heads=(2, 1)),
        vary(d_v=8, local_layers=(1,), window=4, local_head_size=16),
    ],
)
def test_operations_are_those_that_pytorch_counts(config: EncoderConfig) -> None:
    texts, length = 2, 8
    encoder = draw_weights(Encoder(replace(config, pooling="cls"))).use("eager")  # a mean would be a product, too
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        encoder(torch.full((texts, length), 7), torch.full((texts,), length))
    assert gpu.flops_per_token(config, length) * texts * length == counter.get_total_flops()


TASK = Task(weights="", cores=2, texts=["a", "b b", "c"], rows=[[7], [8, 9], [6]], plans={"one": [[0], [1], [2]]})


PEER = """
import numpy as np
from benchmarks.peers.workers import Loaded, serve

def load(task):
    print("libraries print to standard output")
    yield Loaded("f32", (2, 1), len, lambda count: np.full((count, 2), task.cores))

serve(load)
"""


def test_a_peer_in_its_own_process_measures_and_embeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up_peer.py").write_text(PEER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:.")
    with start_worker(Path(sys.executable), "", TASK, module="made_up_peer") as peer:
        np.testing.assert_array_equal(peer.vectors(), np.full((4, 2), 2.0))
        (name, way), *others = peer.ways("Made up").items()
        assert (name, others) == ("Made up: f32, one, 2x1", [])
        sample = way()
        assert len(sample.latencies) == 3
        assert (sample.cpu_us_a_token or 0) > 0
        assert sample.tokens_per_s == pytest.approx(sample.texts_per_s * 4 / 3)


def test_a_peer_that_cannot_start_says_why() -> None:
    worker = start_worker(Path(sys.executable), "no_such_engine", TASK)
    with pytest.raises(CannotMeasure, match="KeyError: 'no_such_engine'"), worker:
        pass


class NamingReplica(BaseHTTPRequestHandler):
    """Answers with the host that it is asked for."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        host = self.headers.get("Host", "nobody").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(host)))
        self.end_headers()
        self.wfile.write(host)

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - as the library calls it


def test_replicas_are_always_told_a_host() -> None:
    """They answer 400 to HTTP/1.1 without one, which nginx speaks to them whatever its client does."""
    with tools.serving(NamingReplica) as port, or_skip(nginx([port] * 2)) as proxy:
        for header, host in ((b"", b"polyhead"), (b"Host: a.example\r\n", b"a.example")):
            address = proxy.address.host, proxy.address.port
            with socket.create_connection(address, timeout=10) as client, client.makefile("rb") as answer:
                client.sendall(b"GET / HTTP/1.0\r\n" + header + b"\r\n")
                assert answer.read().endswith(b"\r\n\r\n" + host)


def test_a_network_that_pytorch_does_not_export_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise torch.onnx.errors.OnnxExporterError("a long report") from ValueError("no view of such strides")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(CannotMeasure, match="--onnx: PyTorch does not export this network: no view of such strides"):
        of_onnx(draw("tiny"))
