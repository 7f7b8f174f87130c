"""Small networks of any family and option that an encoder has, drawn by hypothesis."""

from typing import Any

from hypothesis import strategies as st

from model.config import EncoderConfig
from model.config_parts import ClassificationSettings, Projection

VOCABULARY = 11
LONGEST = 12
ACTIVATIONS = st.sampled_from(["gelu", "gelu_tanh", "relu", "silu"])
MIXES = st.tuples(st.sampled_from([0.0, 0.5, -0.25]), st.sampled_from([1.0, 1.5]))


@st.composite
def configs(draw: st.DrawFn) -> EncoderConfig:
    """An embedder or a classifier."""
    hidden = draw(st.sampled_from([4, 6]))
    values: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "d_k": draw(st.sampled_from([2, 4])),
        "d_v": draw(st.integers(1, 3)),
        "intermediate_size": draw(st.sampled_from([3, 8])),
        "max_positions": LONGEST,
        "type_vocab_size": draw(st.sampled_from([0, 2])),
        "token_size": draw(st.sampled_from([0, 3])),
        "activation": draw(ACTIVATIONS),
        "norm": draw(st.sampled_from(["layer_norm", "rms_norm"])),
        "positions": draw(st.sampled_from(["learned", "sinusoidal", "none"])),
        "pooling": draw(st.sampled_from(["mean", "cls", "max", "last"])),
        "value_activation": draw(st.one_of(st.just("identity"), ACTIVATIONS)),
    }
    for name in ("gated", "up_bias", "down_bias", "attention_bias", "output_bias", "norm_bias", "pre_norm"):
        values[name] = draw(st.booleans())
    for name in ("embedding_norm", "first_attention_norm", "final_norm", "output_gate"):
        values[name] = draw(st.booleans())
    values["sandwich_norm"] = values["pre_norm"] and draw(st.booleans())
    values |= {"query_key_norm": draw(st.booleans()), "causal": draw(st.booleans())}
    values |= draw(_heads()) | draw(_task(hidden))
    return EncoderConfig(**values)


@st.composite
def _heads(draw: st.DrawFn) -> dict[str, Any]:
    """Layers with their heads and positions; pruned ones where nothing needs all layers alike."""
    positions = draw(st.sampled_from(["none", "rotary", "alibi", "relative"]))
    layers = draw(st.integers(1, 3))
    local = draw(st.lists(st.integers(0, layers - 1), unique=True))
    values: dict[str, Any] = {"attention_positions": positions, "relative_buckets": 4, "relative_distance": 5}
    values |= {"local_layers": tuple(sorted(local)), "window": draw(st.integers(0, 3)) if local else None}
    if draw(st.booleans()):
        heads = draw(st.sampled_from([1, 2, 4]))
        values["num_key_value_heads"] = draw(st.sampled_from([(), (max(1, heads // 2),) * layers]))
        mixes = draw(st.one_of(st.just(()), st.tuples(st.just((0.0, 1.0)), *[MIXES] * (layers - 1))))
        learned = bool(mixes) and draw(st.booleans())
        return values | {"num_heads": (heads,) * layers, "value_residual": mixes, "learned_value_residual": learned}
    kept = tuple(tuple(sorted(draw(st.sets(st.integers(0, 2))))) for _ in range(layers))
    values |= {"num_heads": tuple(map(len, kept))}
    return values | ({"original_heads": 3, "kept_heads": kept} if positions in {"alibi", "relative"} else {})


@st.composite
def _task(draw: st.DrawFn, hidden: int) -> dict[str, Any]:
    if draw(st.booleans()):
        size = draw(st.sampled_from([hidden, 3]))
        projections = Projection(size=size, activation="tanh"), Projection(size=size, bias=False, activation="identity")
        return {"projections": tuple(draw(st.lists(st.sampled_from(projections), max_size=2)))}
    settings = ClassificationSettings(
        labels=("no", "yes")[: draw(st.integers(1, 2))],
        dense_activation=draw(st.sampled_from([None, "identity", "tanh", "gelu", "relu"])),
        dense_norm=draw(st.booleans()),
        dense_norm_plain=draw(st.booleans()),
        output_bias=draw(st.booleans()),
    )
    return {"task": "classification", "task_settings": settings}
