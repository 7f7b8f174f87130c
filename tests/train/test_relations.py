import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model.encoder import Encoder
from tests.networks import TINY, draw_weights
from train.relations import PROJECTIONS, last_projections, relation_heads, relation_loss

LENGTHS = [3, 1, 5]


def draw(width: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(sum(LENGTHS), width, generator=generator) for name in PROJECTIONS}


def plain(student: dict[str, Tensor], teacher: dict[str, Tensor], heads: int) -> float:
    """The definition, a token at a time."""
    terms = []
    for name in PROJECTIONS:
        for head in range(heads):
            start = 0
            for length in LENGTHS:
                distributions = []
                for projected in (student[name], teacher[name]):
                    width = projected.shape[1] // heads
                    rows = projected[start : start + length, head * width : (head + 1) * width].double()
                    distributions.append([torch.softmax(rows @ row / math.sqrt(width), dim=0) for row in rows])
                for own, whole in zip(*distributions, strict=True):
                    terms.append(float((whole * (whole.log() - own.log())).sum()))
                start += length
    return sum(terms) / len(terms)


def test_the_loss_is_its_definition_for_networks_of_other_widths() -> None:
    student, teacher = draw(6, 0), draw(12, 1)
    assert relation_heads(6, 12) == 6
    assert relation_loss(student, teacher, LENGTHS).item() == pytest.approx(plain(student, teacher, 6), rel=1e-5)


def test_equal_relations_cost_nothing_and_nothing_comes_of_padding() -> None:
    student = {name: rows.requires_grad_() for name, rows in draw(8, 0).items()}
    loss = relation_loss(student, {name: rows.detach() for name, rows in student.items()}, LENGTHS)
    assert loss.item() == pytest.approx(0, abs=1e-6)
    loss = relation_loss(student, draw(8, 1), LENGTHS)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(rows.grad is not None and bool(rows.grad.isfinite().all()) for rows in student.values())


@pytest.mark.parametrize(("own", "whole", "heads"), [(384, 384, 48), (224, 384, 32), (5, 7, 1), (8, 12, 4)])
def test_both_are_cut_into_the_most_heads(own: int, whole: int, heads: int) -> None:
    assert relation_heads(own, whole) == heads


def test_projections_are_those_of_the_last_layer_with_heads() -> None:
    encoder = draw_weights(Encoder(replace(TINY, num_heads=(4, 2, 0))))
    with last_projections(encoder) as found:
        encoder(torch.tensor([[4, 5, 6]]), torch.tensor([3]))
    assert {name: rows.shape for name, rows in found.items()} == {
        "query": (3, 2 * TINY.d_k),
        "key": (3, 2 * TINY.d_k),
        "value": (3, 2 * TINY.d_v),
    }
    with last_projections(draw_weights(Encoder(replace(TINY, num_heads=(0, 0))))) as found:
        assert found == {}
