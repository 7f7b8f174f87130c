from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.config import EncoderConfig
from model.config_parts import ClassificationSettings, MultiVectorSettings
from model.decomposition.decompose import decompose
from model.decomposition.output_only import decompose_output
from model.encoder import Encoder
from tests.drawn_configs import VOCABULARY, configs
from tests.family_models import MODELS, FamilyModel, draw, ids_and_types, read, save
from tests.model.decomposition.frozen_reference import reference_parts
from tests.networks import draw_weights, vary

SEEDS = st.integers(0, 99)


def drawn(config: EncoderConfig, seed: int, length: int) -> tuple[Encoder, Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    encoder = draw_weights(Encoder(config), seed).double().use("eager")
    ids = torch.randint(0, VOCABULARY, (1, length), generator=generator)
    types = torch.randint(0, 2, (1, length), generator=generator) if config.type_vocab_size else None
    return encoder, ids, types


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference, by the largest value or 1."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / max(1.0, float(expected.abs().max())))


def require_exact(encoder: Encoder, ids: Tensor, types: Tensor | None) -> None:
    """All parts are those of the frozen network, and the whole is the encoder's own output."""
    found, (hidden, output) = decompose(encoder, ids, types), reference_parts(encoder, ids, types)
    assert relative(found.hidden, hidden) < 1e-11
    assert relative(found.output, output) < 1e-11
    assert (
        relative(found.whole, encoder(ids, torch.tensor([ids.shape[1]]), token_type_ids=types).task_output[0]) < 1e-11
    )


@settings(max_examples=25)
@given(configs(), SEEDS, st.integers(1, 6))
def test_parts_are_those_of_the_frozen_network(config: EncoderConfig, seed: int, length: int) -> None:
    require_exact(*drawn(config, seed, length))


@settings(max_examples=50)
@given(configs(), SEEDS, st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_some_sources_are_those_of_all_and_fewer_products_give_the_same(
    config: EncoderConfig, seed: int, places: list[int]
) -> None:
    encoder, ids, types = drawn(config, seed, 6)
    tokens, every = torch.tensor(places), decompose(encoder, ids, types)
    some = decompose(encoder, ids, types, tokens=tokens)
    torch.testing.assert_close(some.hidden, every.hidden[:, places], atol=1e-12, rtol=1e-12)
    fewer = decompose_output(encoder, ids, types, tokens=tokens)
    for found in (some, fewer):
        assert relative(found.output, every.output[places]) < 1e-11
        assert relative(found.own_shares, every.own_shares[:, places]) < 1e-11
        assert torch.equal(found.whole, every.whole)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_parts_are_exact_for_every_family(model: FamilyModel, tmp_path: Path) -> None:
    encoder = read(save(draw(model), model, tmp_path)).encoder.double().use("eager")
    ids, types = ids_and_types(model, 1, 9)
    given_types = types if encoder.config.type_vocab_size else None
    if model.model_type == "embedding_gemma2_text":
        with pytest.raises(ValueError, match="layers with a third norm, normed values or signals are not decomposed"):
            decompose(encoder, ids, given_types)
        return
    require_exact(encoder, ids, given_types)


def test_own_shares_are_kobayashis_one_minus_the_mixing_ratio() -> None:
    encoder, ids, types = drawn(vary(final_norm=True, pre_norm=True), 3, 6)
    found = decompose(encoder, ids, types)
    hidden = encoder(ids, torch.tensor([6]), token_type_ids=types).last_hidden_state[0]
    for token in range(6):
        own = found.hidden[token, token]
        rest = hidden[token] - own
        assert float(found.own_shares[-1, token]) == pytest.approx(float(own.norm() / (own.norm() + rest.norm())))


@settings(max_examples=20)
@given(configs(), SEEDS, st.integers(0, 5), st.booleans())
def test_the_logits_of_any_token_are_decomposed(config: EncoderConfig, seed: int, place: int, has_dense: bool) -> None:
    layers = ClassificationSettings(labels=("O", "A", "B"), dense_activation="gelu" if has_dense else None)
    config = replace(config, task="token_classification", task_settings=layers, projections=())
    encoder, ids, types = drawn(config, seed, 6)
    _, logits = reference_parts(encoder, ids, types)
    found = decompose(encoder, ids, types, place=torch.tensor([place]))
    assert relative(found.output, logits[:, place]) < 1e-11
    assert relative(found.whole, encoder(ids, torch.tensor([6]), token_type_ids=types).task_output[0, place]) < 1e-11
    tokens = torch.tensor([4, 0, 2])
    fewer = decompose_output(encoder, ids, types, tokens=tokens, place=torch.tensor([place]))
    assert relative(fewer.output, found.output[tokens]) < 1e-11
    assert relative(fewer.own_shares, found.own_shares[:, tokens]) < 1e-11
    assert torch.equal(fewer.whole, found.whole)


def test_a_task_without_a_vector_of_a_text_is_refused() -> None:
    encoder, ids, types = drawn(vary(task="multi_vector", task_settings=MultiVectorSettings(size=3)), 0, 4)
    with pytest.raises(ValueError, match="the output of task multi_vector is not decomposed"):
        decompose(encoder, ids, types)
