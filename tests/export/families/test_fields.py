"""Every field of every family's config.json, changed and removed: refused, or the same network as the library's."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig
from transformers.utils import logging

from export.checkpoint import FAMILIES
from export.errors import ExportError
from export.families.family import REQUIRED
from tests.family_models import MODELS, NAMED, FamilyModel, draw, ids_and_types, project, read, save

TOLERANCE = 2e-4
LONGEST = 24
SEED = int(os.environ.get("FIELDS_SEED", "0"))
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
OTHERS: dict[str, Any] = {  # fields that no file of the family's own has
    "is_causal": False,
    "is_decoder": True,
    "rope_scaling": YARN,
    "rope_theta": 77.0,
    "sliding_window": 3,
    "dense_act_fn": "silu",
    "is_gated_act": True,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "head_dim": 4,
    "layer_norm_eps": 0.1,
    "rms_norm_eps": 0.1,
    "hidden_act": "relu",
    "global_attn_every_n_layers": 2,
    "partial_rotary_factor": 0.5,
    "local_rope_theta": 50.0,
    "position_embedding_type": "relative_key",
}
REMOVED = object()


def changes(config: dict[str, Any], generator: random.Random) -> Iterator[tuple[str, Any]]:
    """A field and its new value; removed, too."""
    for name, value in {**dict.fromkeys(OTHERS), **config}.items():
        if name in ("model_type", "architectures", "dtype", "transformers_version", "id2label", "label2id"):
            continue
        if name in config:
            yield name, REMOVED
        if name in OTHERS:
            yield name, OTHERS[name]
        elif isinstance(value, bool):
            yield name, not value
        elif isinstance(value, int | float):
            yield name, type(value)(value * 2 + generator.choice([0, 1, 2]))
        elif isinstance(value, str):
            yield name, generator.choice(["relu", "silu", "gelu", "gated-silu", "mean"])
        elif isinstance(value, list):
            yield name, value[::-1]
        elif isinstance(value, dict) and "rope_theta" in value:
            yield name, {**value, "rope_theta": 50.0}


def difference(folder: Path, model: FamilyModel) -> float | None:
    """Between the library's hidden states and ours; None if either refuses the folder."""
    try:
        ours = read(folder).encoder.use("eager")
    except ExportError:
        return None
    ids, types = ids_and_types(model, 1, LONGEST)
    inputs = {"token_type_ids": types} if ours.config.type_vocab_size else {}
    try:
        theirs = model.auto.from_pretrained(folder, attn_implementation="eager").eval()
        with torch.inference_mode():
            expected = theirs(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs)[0]
    except Exception:  # what the library refuses need not be the same
        return None
    with torch.inference_mode():
        found = ours(ids, torch.tensor([LONGEST]), token_type_ids=inputs.get("token_type_ids")).last_hidden_state
        found = project(ours, found)
    return float((expected - found).abs().max())


def check(model: FamilyModel, folder: Path, share: float) -> list[str]:
    """Changes that are neither refused nor reproduced."""
    logging.set_verbosity_error()
    save(draw(model), model, folder)
    path, generator = folder / "config.json", random.Random(SEED)  # noqa: S311 - no secret
    config = {**AutoConfig.for_model(model.model_type, **model.settings).to_dict(), **json.loads(path.read_text())}
    wrong = []
    for name, value in changes(config, generator):
        if generator.random() > share:
            continue
        changed = {key: kept for key, kept in config.items() if key != name}
        path.write_text(json.dumps(changed if value is REMOVED else {**changed, name: value}))
        found = difference(folder, model)
        if found is not None and not found <= TOLERANCE:
            wrong.append(f"{name} {'removed' if value is REMOVED else value}: {found:.2g}")
    return wrong


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert", "qwen3", "gemma3", "gemma2", "t5"])
def test_some_fields_are_reproduced_or_refused(name: str, tmp_path: Path) -> None:
    assert not check(NAMED[name], tmp_path, 0.1), f"FIELDS_SEED={SEED}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_field_is_reproduced_or_refused(model: FamilyModel, tmp_path: Path) -> None:
    assert not check(model, tmp_path, 1.0), f"FIELDS_SEED={SEED}"


@pytest.mark.parametrize("kind", sorted(FAMILIES.keys() & CONFIG_MAPPING.keys()))
def test_a_field_that_is_left_out_is_what_the_library_takes(kind: str) -> None:
    theirs, own = CONFIG_MAPPING[kind]().to_dict(), {name: alias for alias, name in FAMILIES[kind].aliases.items()}
    ours = {name: value for name, value in FAMILIES[kind].settings.items() if value not in (REQUIRED, None)}
    assert ours == {name: theirs.get(name, theirs.get(own.get(name), value)) for name, value in ours.items()}
