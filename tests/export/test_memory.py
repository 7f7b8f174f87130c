from pathlib import Path

import pytest
import torch

from export.errors import VerificationError
from export.memory import available_bytes, needed_bytes, require_memory
from model.encoder import Encoder
from tests.networks import TINY

XLM_R_LARGE = 567_754_752 * 4  # parameters of bge-reranker-v2-m3 without its last layers


def test_a_large_network_takes_what_was_measured() -> None:
    assert needed_bytes(XLM_R_LARGE, num_heads=24 * 16, longest=8192) == pytest.approx(8.8e9, rel=0.05)


def test_a_large_network_without_memory_is_refused_with_both_numbers() -> None:
    with torch.device("meta"):
        encoder = Encoder(TINY)
        encoder.embeddings.token = torch.nn.Embedding(1 << 19, 1 << 10)  # 2 GiB, of which nothing is stored
    with pytest.raises(
        VerificationError, match=r"takes about 5\.3 GB of memory more, and 5\.0 GB are free: export it on"
    ):
        require_memory(encoder, 5 * 10**9)
    require_memory(encoder, 6 * 10**9)
    require_memory(encoder, None)


def test_a_small_network_is_not_asked_about() -> None:
    require_memory(Encoder(TINY), 1)


def test_what_is_free_is_what_linux_says_and_no_more_than_the_container_has(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert available_bytes(meminfo, tmp_path) is None
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    assert available_bytes(meminfo, tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_bytes(meminfo, tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("3000\n")
    assert available_bytes(meminfo, tmp_path) == 2000
