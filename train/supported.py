"""Networks that heads can be removed from while what is left is fitted: every setting is known here, or refused."""

from dataclasses import fields

from export.errors import UnsupportedModel
from model.config import EncoderConfig

# A setting that does not stand here must have its default: one that is added later is refused until it is known here.
# `sandwich_norm` norms what a layer adds, which the fit takes for what is added; `shared_layers` would fit one weight
# to several layers.
ANY_VALUE = {
    *("vocab_size", "hidden_size", "num_heads", "d_k", "d_v", "intermediate_size", "max_positions"),
    *("type_vocab_size", "token_size", "activation", "gated", "up_bias", "down_bias", "attention_bias", "output_bias"),
    *("norm", "norm_bias", "norm_eps", "pre_norm", "embedding_norm", "first_attention_norm", "final_norm"),
    *("positions", "attention_positions", "causal", "rope_theta", "rope_divisor", "rope_scaling", "local_rope_theta"),
    *("local_layers", "window", "relative_buckets", "relative_distance", "original_heads", "kept_heads"),
    *("num_key_value_heads", "query_groups", "score_scale", "query_key_norm"),
    *("value_activation", "value_residual", "learned_value_residual", "output_gate", "head_dropout"),
    *("pooling", "projections", "task", "task_settings"),
}


def require_fittable(config: EncoderConfig) -> None:
    """Refuses a network with a setting that the fit does not know.

    Raises:
        UnsupportedModel: the message names the settings.
    """
    unknown = [
        f"{field.name} {getattr(config, field.name)!r:.100}"
        for field in fields(config)
        if field.name not in ANY_VALUE and getattr(config, field.name) != field.default
    ]
    if unknown:
        raise UnsupportedModel(f"training without some heads knows no form of {', '.join(unknown)}: take another model")
