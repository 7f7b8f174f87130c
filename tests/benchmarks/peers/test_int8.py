import numpy as np
import pytest

from benchmarks.lib.report import Table
from benchmarks.peers.int8 import describe_processor, summarize

RATES = {
    "Polyhead fp32: one text a run, 2x1": 100.0,
    "Polyhead fp32: sorted, 2x1": 200.0,
    "Polyhead int8: sorted, 2x1": 500.0,
    "Other int8: int8, sorted, 2x1": 300.0,
}


def test_each_engine_is_judged_by_its_best_rate_and_its_vectors() -> None:
    rates = Table("rates", "", ("way", "tokens_per_s", "cpu_us_a_token"))
    for way, rate in RATES.items():
        rates.add(way=way, tokens_per_s=rate, cpu_us_a_token=2e6 / rate)
    exact = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    turned = np.array([[1.0, 0.0], [3.0, 4.0]], dtype=np.float32)  # cosines 1 and 0.8
    vectors = {"Polyhead fp32": exact, "Polyhead int8": exact, "Other int8": turned, "never measured": exact}
    rows = summarize(rates, vectors, "Polyhead fp32", "").rows
    assert [(row["engine"], row["over_fp32"]) for row in rows] == [
        ("Polyhead fp32", 1.0),
        ("Polyhead int8", 2.5),
        ("Other int8", 1.5),
    ]
    assert [row["cpu_us_a_token"] for row in rows] == pytest.approx([1e4, 4e3, 2e6 / 300])
    assert rows[2]["cosine_mean"] == pytest.approx(0.9)
    assert rows[2]["cosine_worst"] == pytest.approx(0.8)
    assert rows[2]["best_way"] == "int8, sorted, 2x1"


@pytest.mark.parametrize(("found", "said"), [(["avx2"], "no VNNI"), (["avx2", "avx512_vnni"], "avx512_vnni")])
def test_the_processor_is_named_with_what_int8_is_fast_by(
    found: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = {"cpu": "AMD EPYC", "cpu_family_model_stepping": "25/1/1", "cores": 2, "instructions": found}
    monkeypatch.setattr("benchmarks.peers.int8.describe_machine", lambda: machine)
    assert describe_processor() == f"AMD EPYC 25/1/1, 2 cores, {said}"
