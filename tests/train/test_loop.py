import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from export.checkpoint import Checkpoint
from model.encoder import Encoder
from tests.networks import TINY, draw_weights, vary
from tests.train.conftest import read_back
from train import loop
from train.classify import Classify
from train.commands import ClassifySettings, ContrastSettings, DistilSettings, GateSettings, HealSettings, Weights
from train.contrast import Contrast
from train.distil import Distil
from train.errors import Diverged, RunError
from train.folder import RECORD, write_network
from train.gates import Gates
from train.heal import Heal
from train.optimizer import ITERATIONS, make_optimizer, orthogonalise, parameter_groups
from train.parallel import Processes
from train.settings import CHECKPOINT, OptimizerName, RunSettings, head_dropout_at, rate_at

pytestmark = pytest.mark.usefixtures("receive")


def stopping(kind: Any, stop_at: int) -> Any:
    """A recipe that is asked to stop in the middle of a step, as Ctrl-C would.

    The handler that is installed is called: a signal would also reach the tests' own process.
    """

    class Stopping(kind):  # type: ignore[misc]
        def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
            if step == stop_at:
                handler = signal.getsignal(signal.SIGINT)
                assert callable(handler)
                handler(signal.SIGINT, None)
            return float(super().backward(places, step=step, share=share))

    return Stopping


@pytest.fixture
def settings(tiny_folder: Path, text_file: Path) -> HealSettings:
    weights = Weights(substitute=0.2)
    return HealSettings(model=str(tiny_folder), texts=(text_file,), remove=0.4, fitting_texts=32, weights=weights)


@pytest.fixture
def run(tmp_path: Path) -> RunSettings:
    """A little more than an epoch."""
    settings = RunSettings(output=tmp_path / "run", epochs=1.3, batch_size=8, learning_rate=1e-2, evaluations=3)
    return replace(settings, dropout=0.1, head_dropout=0.3)


def interrupted(kind: Any, settings: Any, run: RunSettings, stop_at: int = 5) -> None:
    """A run that is asked to stop, and does."""
    with pytest.raises(KeyboardInterrupt):
        loop.train(stopping(kind, stop_at)(settings, run), run)


def resumed(kind: Any, settings: Any, run: RunSettings) -> Any:
    """The recipe of a run that goes on to its end."""
    again = replace(run, resume=True)
    recipe = kind(settings, again)
    loop.train(recipe, again)
    return recipe


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_back(folder).encoder.state_dict()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_ends_in_the_bits_of_an_uninterrupted_one(
    optimizer: OptimizerName, settings: HealSettings, run: RunSettings, tiny_folder: Path
) -> None:
    run = replace(run, optimizer=optimizer)
    whole = replace(run, output=run.output.with_name("whole"))
    loop.train(Heal(settings, whole), whole)
    interrupted(Heal, settings, run)
    assert not json.loads((run.output / RECORD).read_text())["is_done"]
    assert json.loads((whole.output / RECORD).read_text())["steps"] > 6
    assert (run.output / CHECKPOINT).is_file()
    (run.output / f".{CHECKPOINT}.part").touch()  # as a process that is killed while it writes leaves it
    (run.output / ".next.part").mkdir()
    recipe = resumed(Heal, settings, run)
    assert not [path for path in run.output.iterdir() if CHECKPOINT in path.name or path.name.startswith(".")]
    records = [json.loads((folder / RECORD).read_text()) for folder in (whole.output, run.output)]
    for name in ("best", "steps", "tokens", "evaluations", "losses", "removed", "settings", "texts"):
        assert records[0][name] == records[1][name], name
    assert records[0]["is_done"]
    teacher = recipe.teacher.state_dict()
    for found, expected in ((weights(run.output), weights(whole.output)), (teacher, weights(tiny_folder))):
        assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_bf16_is_for_the_products_of_muon_and_not_for_weights(
    settings: HealSettings, run: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    def watched(matrix: torch.Tensor) -> torch.Tensor:
        direction = orthogonalise(matrix)
        seen.add(direction.dtype)
        return direction

    monkeypatch.setattr("train.optimizer.orthogonalise", watched)
    run = replace(run, optimizer="muon", precision="bf16", epochs=0.2)
    recipe = Heal(settings, run)
    loop.train(recipe, run)
    assert seen == {torch.bfloat16}
    assert {parameter.dtype for parameter in recipe.module.parameters()} == {torch.float32}


def test_a_second_signal_interrupts_and_one_that_is_ignored_stays_ignored(receive: Callable[[int], None]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` has it
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with loop.noted_endings() as noted:
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        receive(signal.SIGTERM)
        assert noted == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            receive(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_of_equal_networks_the_one_that_learned_longest_is_kept(
    settings: HealSettings, run: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Heal(settings, run)
    monkeypatch.setattr(recipe, "evaluate", lambda: {"cosine_mean": 1.0})
    progress = loop.train(recipe, run)
    assert progress.best_step == progress.step
    trained = recipe.encoder.state_dict()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in weights(run.output).items())


def test_the_best_network_is_kept_and_healing_helps(settings: HealSettings, run: RunSettings) -> None:
    run = replace(run, dropout=0.0, head_dropout=0.0, learning_rate=2e-3, epochs=4)
    recipe = Heal(settings, run)
    progress = loop.train(recipe, run)
    scores = [figures["cosine_mean"] for figures in progress.evaluations]
    assert len(scores) == 4
    assert progress.best == max(scores) > scores[0]
    recipe.encoder.load_state_dict(weights(run.output))
    assert round(recipe.evaluate()["cosine_mean"], 6) == progress.best
    assert sum(recipe.encoder.config.num_heads) == 8 - 3


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


def test_a_loss_that_is_no_number_ends_the_run(settings: HealSettings, run: RunSettings) -> None:
    class Broken(Heal):
        def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
            loss = super().backward(places, step=step, share=share)
            return float("nan") if step == 2 else loss

    with pytest.raises(Diverged, match="step 3: the loss is nan.*lower --learning-rate"):
        loop.train(Broken(settings, run), run)
    assert all(tensor.isfinite().all() for tensor in weights(run.output).values())


def test_a_network_that_gives_no_numbers_ends_the_run_and_is_not_kept(settings: HealSettings, run: RunSettings) -> None:
    class Broken(Heal):
        def evaluate(self) -> dict[str, float]:
            if (run.output / RECORD).exists():  # not the first time
                for parameter in self.encoder.parameters():
                    parameter.data.fill_(float("nan"))
            return super().evaluate()

    with pytest.raises(
        Diverged, match="step 5: of the held-out examples the network gives cosine_mean nan.* lower --le"
    ):
        loop.train(Broken(settings, run), run)
    assert all(tensor.isfinite().all() for tensor in weights(run.output).values())


def test_a_run_goes_on_only_as_it_began(
    settings: HealSettings, run: RunSettings, tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="nothing to go on from"):
        Heal(settings, replace(run, resume=True))
    interrupted(Heal, settings, run)
    for changed in (replace(run, seed=1), replace(run, learning_rate=1e-3)):
        with pytest.raises(RunError, match="run with other settings: (seed|learning_rate) was"):
            resumed(Heal, settings, changed)
    write_network(tmp_path / "other", draw_weights(Encoder(TINY), seed=7), tiny_checkpoint)
    for other, name in (
        (replace(settings, model=str(tmp_path / "other")), "source"),
        (replace(settings, weights=Weights(hidden_weight=0.7)), "distillation"),
        (replace(settings, remove=0.75), "asked"),
    ):
        with pytest.raises(RunError, match=f"run with other data: {name} was"):
            resumed(Heal, other, run)
    with pytest.raises(RunError, match="holds a checkpoint: go on with --resume"):
        loop.train(Heal(settings, run), run)


def test_the_rate_rises_and_falls() -> None:
    settings = RunSettings(output=Path(), warm_up=0.1, head_dropout=0.4)
    rates = [rate_at(step, 100, settings) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(0.5)
    assert rates[99] < 1e-3
    dropped = [head_dropout_at(step, 101, settings) for step in (0, 25, 50, 100)]
    assert dropped == pytest.approx([0.4, 0.2, 0.0, 0.4])


class Second(Processes):
    """The second of two processes, which takes whole batches, so that it can run alone."""

    def rows(self, total: int) -> slice:
        return slice(0, total)


def test_each_process_draws_the_same_numbers_again_after_a_stop(settings: HealSettings, run: RunSettings) -> None:
    seen: dict[str, list[float]] = {}

    class Drawing(Heal):
        def backward(self, places: Sequence[int], *, step: int, share: float) -> float:
            seen.setdefault(name, []).append(float(torch.rand(1)))
            return super().backward(places, step=step, share=share)

    name = "first"
    interrupted(Drawing, settings, run)
    name, second = "second", replace(run, output=run.output.with_name("second"))
    loop.train(Drawing(settings, second), second, Second(rank=1))
    name, again = "resumed", replace(run, resume=True)
    loop.train(Drawing(settings, again), again, Second(rank=1))
    assert seen["resumed"] == seen["second"][6:]
    assert seen["first"][:3] != seen["second"][:3]


@pytest.mark.parametrize("command", ["contrast", "classify", "distil"])
def test_networks_of_shared_layers_are_trained_stopped_and_resumed(
    command: str, tiny_checkpoint: Checkpoint, text_file: Path, rated_file: Path, tmp_path: Path
) -> None:
    config = replace(TINY, num_heads=(4, 4, 4), shared_layers=(0, 0, 0))
    write_network(tmp_path / "shared", draw_weights(Encoder(config)), tiny_checkpoint)
    model = str(tmp_path / "shared")
    kind: Any
    kind, settings = {
        "contrast": (Contrast, ContrastSettings(model=model, rows=rated_file)),
        "classify": (Classify, ClassifySettings(model=model, rows=rated_file, pairs=True)),
        "distil": (Distil, DistilSettings(model=model, texts=(text_file,))),
    }[command]
    run = RunSettings(output=tmp_path / "run", epochs=0.5, batch_size=8, evaluations=1)
    interrupted(kind, settings, run, stop_at=1)
    trained = resumed(kind, settings, run).encoder.state_dict()
    assert torch.equal(trained["layers.0.feed_forward.up.weight"], trained["layers.2.feed_forward.up.weight"])
    assert read_back(run.output).encoder.config.shared_layers == (0, 0, 0)


def test_an_embedding_rate_of_0_leaves_only_tables_as_they_are(
    tiny_checkpoint: Checkpoint, text_file: Path, tmp_path: Path
) -> None:
    write_network(tmp_path / "narrow", draw_weights(Encoder(replace(TINY, token_size=8))), tiny_checkpoint)
    run = RunSettings(output=tmp_path / "run", embedding_rate=0.0)
    recipe = Distil(DistilSettings(model=str(tmp_path / "narrow"), texts=(text_file,)), run)
    parameter_groups(recipe.module, recipe.encoder, recipe.rate_factors, run)
    frozen = {name for name, parameter in recipe.encoder.named_parameters() if not parameter.requires_grad}
    assert frozen == {f"embeddings.{name}.weight" for name in ("token", "position", "token_type")}


def filled(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(48, 48), (32, 48), (48, 192), (192, 48)])
def test_bfloat16_rounds_directions_and_no_more(shape: tuple[int, int]) -> None:
    """Of a gradient's kind: few of its singular values are large."""
    left, lengths, right = torch.linalg.svd(filled(*shape), full_matrices=False)
    matrix = left @ torch.diag(torch.logspace(0, -4, len(lengths))) @ right
    expected = orthogonalise(matrix)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = orthogonalise(matrix)
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - expected).norm() < 0.2 * expected.norm()


def test_no_gradient_is_no_step() -> None:
    assert torch.equal(orthogonalise(torch.zeros(4, 16)), torch.zeros(4, 16))


def test_steps_are_those_of_pytorch(tmp_path: Path) -> None:
    """The layers' matrices go as PyTorch's Muon has them, which rounds to bfloat16; the rest as AdamW."""
    config = vary(hidden_size=32, intermediate_size=96)
    ours, theirs, start = (draw_weights(Encoder(config)).requires_grad_(True) for _ in range(3))
    named, begun = dict(theirs.named_parameters()), dict(start.named_parameters())
    run = RunSettings(output=tmp_path, optimizer="muon", learning_rate=1e-2, embedding_rate=0.5, weight_decay=0.1)
    optimizer = make_optimizer(ours, ours, {}, run)
    hidden, tables = (
        {name: own for name, own in named.items() if name.startswith(part) and own.ndim == 2}
        for part in ("layers.", "embeddings.")
    )
    assert len(hidden) == 2 * 6
    muon = torch.optim.Muon(
        [*hidden.values()], lr=1e-2, weight_decay=0.1, ns_steps=ITERATIONS, adjust_lr_fn="match_rms_adamw"
    )
    rest = torch.optim.AdamW(
        [
            {"params": [*tables.values()], "lr": 5e-3},
            {"params": [own for name, own in named.items() if name not in {*hidden, *tables}], "lr": 1e-2},
        ],
        betas=(0.9, 0.98),
        weight_decay=0.0,
    )
    for group in optimizer.param_groups:
        group["lr"] = run.learning_rate * group["scale"]
    for step in range(4):
        for network in (ours, theirs):
            for index, parameter in enumerate(network.parameters()):
                parameter.grad = filled(*parameter.shape, seed=100 * step + index)
        for each in (optimizer, muon, rest):
            each.step()
        optimizer.zero_grad()
    for name, own in ours.named_parameters():
        moved, expected = own - begun[name], named[name] - begun[name]
        allowed = 0.03 if name in hidden else 1e-4  # of the step
        assert (moved - expected).norm() < allowed * expected.norm(), name
        assert expected.norm() > 0, name
