"""Names of the graph's inputs and outputs, as `export` writes them and `service` feeds and reads them."""

from model.tasks.settings import OUTPUT_NAMES

INPUT_IDS = "input_ids"
LENGTHS = "lengths"
ATTENTION_LAYERS = "attention_layers"
NORM_LAYERS = "norm_layers"  # bool [L]: which layers' value norms to compute
HEAD_GATES = "head_gates"  # float32 [B, sum of all layers' heads], first layer first; no rows: no gates
TOKEN_TYPE_IDS = "token_type_ids"  # noqa: S105 - a tensor name, no password
POOLED = OUTPUT_NAMES["embedding"]
LOGITS = OUTPUT_NAMES["classification"]
SPARSE = OUTPUT_NAMES["sparse"]
TOKEN_VECTORS = OUTPUT_NAMES["multi_vector"]
LAST_HIDDEN_STATE = "last_hidden_state"

SOURCES = "sources"  # of the explaining graph: int64 [N], places of the tokens whose parts are computed
PARTS = "parts"  # float32 [N, D'], what each gives to the task's output
WHOLE = "whole"  # float32 [D'], that output
OWN_SHARES = "own_shares"  # float32 [L, N], how much of each token's vector is its own after each layer


def attentions_name(layer: int) -> str:
    """Name of the graph output that holds one layer's attention weights."""
    return f"attentions.{layer}"


def value_norms_name(layer: int) -> str:
    """Name of the graph output [B, H_l, S] that holds one layer's value norms; [0, H_l, 0] where not wanted."""
    return f"value_norms.{layer}"
