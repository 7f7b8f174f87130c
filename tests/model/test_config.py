import pytest

from model.config import EncoderConfig
from model.config_checks import ConfigError
from model.config_parts import Projection

CONFIG = EncoderConfig(
    vocab_size=100,
    hidden_size=32,
    num_heads=(4, 0, 3),
    d_k=8,
    d_v=5,
    intermediate_size=64,
    max_positions=16,
    type_vocab_size=2,
    projections=(Projection(size=7),),
)


def test_survives_a_round_trip_through_json_types() -> None:
    assert EncoderConfig.from_dict(CONFIG.to_dict()) == CONFIG


def test_reads_the_one_projection_of_older_files() -> None:
    data = CONFIG.to_dict()
    (data["projection"],) = data.pop("projections")
    assert EncoderConfig.from_dict(data) == CONFIG
    with pytest.raises(ConfigError, match="projection and projections: give the second only"):
        EncoderConfig.from_dict({**CONFIG.to_dict(), "projection": data["projection"]})
    del data["projection"]
    assert EncoderConfig.from_dict({**data, "projection": None}).projections == ()


def test_derives_depth_and_embedding_size() -> None:
    assert CONFIG.num_layers == 3
    assert CONFIG.embedding_size == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": []}, "num_heads is empty"),
        ({"num_heads": [4, -1]}, r"num_heads\[1\] is -1"),
        ({"num_heads": [33]}, "at most hidden_size = 32 heads"),
        ({"d_k": 0}, "d_k is 0: expected a whole number of at least 1"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"activation": "softplus"}, "activation is 'softplus': expected one of gelu"),
        ({"pooling": "median"}, "pooling is 'median'"),
        ({"norm_eps": 0.0}, "norm_eps is 0.0"),
        ({"surprise": 1}, "unknown fields surprise"),
        ({"num_key_value_heads": [2]}, "num_key_value_heads has 1 layers, num_heads 3"),
        ({"num_key_value_heads": [3, 0, 3]}, r"num_heads\[0\] is 4: expected a multiple of its 3 key and value heads"),
        ({"num_key_value_heads": [0, 0, 3]}, r"num_key_value_heads\[0\] is 0: expected a whole number of at least 1"),
        ({"num_key_value_heads": [5, 0, 3]}, r"num_key_value_heads\[0\] is 5: .* at most 4"),
        ({"query_groups": [[4], [], [3]]}, "query_groups has 3 layers: expected those of num_key_value_heads"),
        (
            {"num_key_value_heads": [2, 0, 1], "query_groups": [[3, 2], [], [3]]},
            r"query_groups\[0\] is \[3, 2\]: expected 2 that sum to 4",
        ),
        ({"score_scale": -1}, "score_scale is -1: expected a positive number"),
        ({"sandwich_norm": True}, "sandwich_norm is a second norm behind those of pre_norm: set both"),
        ({"causal": 1}, "causal is 1: expected true or false"),
        ({"projections": [{"size": 0}]}, "projections.size is 0"),
        ({"shared_layers": [0, 0, 1]}, r"shared_layers is \[0, 0, 1\]: expected 3 layers, of each the first alike"),
        ({"shared_layers": [0, 0, 0]}, "layers of one weight need the same heads"),
        ({"projections": [{"width": 3}]}, "incomplete encoder configuration"),
    ],
)
def test_refuses_a_configuration_that_describes_no_network(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EncoderConfig.from_dict({**CONFIG.to_dict(), **change})


def test_refuses_a_missing_field() -> None:
    data = CONFIG.to_dict()
    del data["vocab_size"]
    with pytest.raises(ConfigError, match="vocab_size"):
        EncoderConfig.from_dict(data)
