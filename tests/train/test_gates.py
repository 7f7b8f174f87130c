import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model.encoder import Encoder
from tests.networks import TINY, draw_weights
from tests.train.conftest import read_back
from train import loop
from train.commands import GateSettings, HealSettings
from train.folder import RECORD
from train.gates import Gates, HardConcreteGates, fold_gates
from train.heal import Heal
from train.settings import RunSettings

LOG_ALPHA = torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0, 4.0])


def gates_at(log_alpha: torch.Tensor) -> HardConcreteGates:
    gates = HardConcreteGates(len(log_alpha))
    with torch.no_grad():
        gates.log_alpha.copy_(log_alpha)
    return gates


def test_drawn_gates_are_closed_as_often_as_expected() -> None:
    gates = gates_at(LOG_ALPHA)
    drawn = gates.draw(20_000, torch.Generator().manual_seed(0)).detach()
    assert drawn.min() == 0
    assert drawn.max() == 1
    closed = (drawn == 0).double().mean(dim=0)
    # Closed where sigmoid((log u - log(1 - u) + a) / b) <= 1 / 12: u <= sigmoid(b log(1 / 11) - a).
    expected = torch.sigmoid(2 / 3 * torch.log(torch.tensor(1 / 11)) - LOG_ALPHA).double()
    torch.testing.assert_close(closed, expected, atol=0.01, rtol=0)
    assert float(gates.expected_closed().detach()) == pytest.approx(float(expected.mean()), abs=1e-6)


def test_the_multipliers_bring_the_share_to_its_target() -> None:
    gates = gates_at(torch.full((20,), 2.5))
    optimizer = torch.optim.Adam(gates.parameters(), lr=0.1)
    for _ in range(600):
        optimizer.zero_grad()
        loss = gates.penalty(0.4) - 0.02 * gates.log_alpha.sigmoid().sum()  # which alone would keep all open
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert float(gates.expected_closed().detach()) == pytest.approx(0.4, abs=0.03)


def test_folded_gates_give_what_the_gated_network_gives() -> None:
    encoder = draw_weights(Encoder(TINY)).double()
    gates = torch.tensor([0.3, 1.0, 0.7, 0.5, 1.0, 0.2, 0.9, 0.6], dtype=torch.float64)
    ids = torch.randint(0, 48, (5, 12), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([12, 1, 5, 7, 3])
    expected = encoder(ids, lengths, head_gates=gates.expand(5, -1)).pooled
    torch.testing.assert_close(fold_gates(encoder, gates)(ids, lengths).pooled, expected, atol=1e-12, rtol=0)


def test_a_run_removes_as_many_heads_as_asked_and_heal_takes_its_record(
    tiny_folder: Path, text_file: Path, tmp_path: Path
) -> None:
    settings = GateSettings(model=str(tiny_folder), texts=(text_file,), remove=0.5)
    run = RunSettings(output=tmp_path / "gated", epochs=2, batch_size=8, learning_rate=1e-3, evaluations=2)
    loop.train(Gates(settings, run), run)
    record = json.loads((run.output / RECORD).read_text())
    written = read_back(run.output).encoder.config
    assert sum(written.num_heads) == 4 == len(record["removed"])
    assert 0 < record["evaluations"][-1]["closed"] < 1
    of_gates = HealSettings(model=str(tiny_folder), texts=(text_file,), heads=run.output / RECORD)
    healed = Heal(of_gates, replace(run, output=tmp_path / "healed"))
    assert healed.encoder.config.num_heads == written.num_heads
    assert healed.described["removed"] == record["removed"]


class Falling(Gates):
    """Is worse at every evaluation, and closes other gates each time."""

    judged = 0

    def evaluate(self) -> dict[str, float]:
        self.judged += 1
        with torch.no_grad():
            self.gates.log_alpha.copy_(torch.linspace(-2, 2, 8).roll(self.judged))
        return {"cosine_mean": -self.judged, "closed": 0.5}


def test_the_record_names_the_heads_of_the_network_that_is_kept_and_no_early_one_is(
    tiny_folder: Path, text_file: Path, tmp_path: Path
) -> None:
    run = RunSettings(output=tmp_path / "gated", epochs=2, batch_size=8, evaluations=5)
    recipe = Falling(GateSettings(model=str(tiny_folder), texts=(text_file,), remove=0.5), run)
    loop.train(recipe, run)
    record = json.loads((run.output / RECORD).read_text())
    assert record["best"]["step"] == record["evaluations"][2]["step"]  # the first after 40 % of the steps
    written = read_back(run.output).encoder.config.num_heads
    removed = [layer for layer, _ in record["removed"]]
    assert written == tuple(heads - removed.count(layer) for layer, heads in enumerate(TINY.num_heads))
    assert record["network"]["num_heads"] == list(written)
    assert record["removed"] != recipe.findings()["removed"]
