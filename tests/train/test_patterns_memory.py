"""The attention that memorises is PyTorch's, theory's promise is its formula, and a network does memorise."""

import pytest
import torch
from torch import nn

from train.experiments.patterns.memory import MEMORISED, attend, memorise, promised


def test_attention_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    contexts, queries = torch.randn(2, 6, 8, 32, generator=generator), torch.randn(2, 6, 1, 32, generator=generator)
    weights = [torch.randn(2, 32, size, generator=generator) for size in (32, 32, 32, 1)]
    found = attend(contexts, queries, weights, 4)
    for run in range(2):
        query, key, value, output = (weight[run] for weight in weights)
        reference = nn.MultiheadAttention(32, 4, bias=False, batch_first=True)
        reference.in_proj_weight.data = torch.cat([query.T, key.T, value.T])
        reference.out_proj.weight.data = torch.eye(32)
        context, _ = reference(queries[run], contexts[run], contexts[run])
        torch.testing.assert_close(found[run], (context[:, 0] @ output)[:, 0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("heads", "examples"), [(1, 8), (2, 15), (4, 29), (8, 25), (16, 17), (32, 1)])
def test_theory_promises_most_where_heads_are_as_wide_as_a_text_is_long(heads: int, examples: int) -> None:
    assert promised(heads) == examples


def test_a_network_ends_as_soon_as_every_seed_has_memorised() -> None:
    found = memorise(8, [0, 1], 300)
    assert max(found["errors"]) <= MEMORISED
    assert 0 < max(found["values"]) < 300
