from pathlib import Path

import pytest
import torch

from model.encoder import Encoder
from tests.networks import draw_weights, vary
from train.optimizer import make_optimizer, orthogonalise
from train.settings import RunSettings


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
    muon = torch.optim.Muon([*hidden.values()], lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
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
