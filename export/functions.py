"""Model-local ONNX functions, domain `polyhead`: what the graph computes on demand beside the fused operators.

A function survives the exporter's passes as one node, which is then inlined by ONNX Runtime at load.
"""

import onnx_ir
from onnxscript import script
from onnxscript.onnx_opset import opset24 as op
from onnxscript.values import Opset

from model.attention import WEIGHTS_DOMAIN, WEIGHTS_OP_VERSION

_polyhead = Opset(WEIGHTS_DOMAIN, WEIGHTS_OP_VERSION)


@script(_polyhead, default_opset=op)
def AttentionWeights(query, key, lengths, wanted, num_heads: int, scale: float):  # noqa: N802, PLR0917 - an operator
    """softmax(Q K^T * scale) per head over the real keys, where wanted.

    query, key: [B, S, H*K]; lengths: int64 [B]; wanted: bool scalar. Returns [B, H, S, S], padded keys exactly 0, rows
    of padded queries anything; or [0, H, 0, 0] where not wanted.
    """
    if wanted:
        heads = op.Constant(value_int=num_heads)
        shape = op.Concat(
            op.Constant(value_ints=[0, 0]),
            op.Reshape(heads, op.Constant(value_ints=[1])),
            op.Constant(value_ints=[-1]),
            axis=0,
        )
        q = op.Transpose(op.Reshape(query, shape), perm=[0, 2, 1, 3])
        k_transposed = op.Transpose(op.Reshape(key, shape), perm=[0, 2, 3, 1])
        factor = op.CastLike(op.Constant(value_float=scale), query)
        scores = op.Mul(op.MatMul(q, k_transposed), factor)
        sequence = op.Squeeze(op.Shape(query, start=1, end=2))
        positions = op.Range(op.Constant(value_int=0), sequence, op.Constant(value_int=1))
        real = op.Unsqueeze(op.Less(positions, op.Unsqueeze(lengths, [1])), [1, 2])
        never = op.CastLike(op.Constant(value_float=float("-inf")), query)
        zero = op.CastLike(op.Constant(value_float=0.0), query)
        weights = op.Where(real, op.Softmax(op.Where(real, scores, never), axis=-1), zero)
    else:
        heads_ = op.Constant(value_int=num_heads)
        none = op.Concat(
            op.Constant(value_ints=[0]),
            op.Reshape(heads_, op.Constant(value_ints=[1])),
            op.Constant(value_ints=[0, 0]),
            axis=0,
        )
        weights = op.CastLike(op.ConstantOfShape(none), query)
    return weights


@script(_polyhead, default_opset=op)
def BiasedAttentionWeights(query, key, lengths, wanted, bias, num_heads: int, scale: float):  # noqa: N802, PLR0917 - an operator
    """softmax(Q K^T * scale + bias) per head over the real keys, where wanted.

    As `AttentionWeights`, of which it is a copy but for one sum: a function's body cannot tell a missing input. bias:
    [1, H or 1, S, S].
    """
    if wanted:
        heads = op.Constant(value_int=num_heads)
        shape = op.Concat(
            op.Constant(value_ints=[0, 0]),
            op.Reshape(heads, op.Constant(value_ints=[1])),
            op.Constant(value_ints=[-1]),
            axis=0,
        )
        q = op.Transpose(op.Reshape(query, shape), perm=[0, 2, 1, 3])
        k_transposed = op.Transpose(op.Reshape(key, shape), perm=[0, 2, 3, 1])
        factor = op.CastLike(op.Constant(value_float=scale), query)
        scores = op.Add(op.Mul(op.MatMul(q, k_transposed), factor), bias)
        sequence = op.Squeeze(op.Shape(query, start=1, end=2))
        positions = op.Range(op.Constant(value_int=0), sequence, op.Constant(value_int=1))
        real = op.Unsqueeze(op.Less(positions, op.Unsqueeze(lengths, [1])), [1, 2])
        never = op.CastLike(op.Constant(value_float=float("-inf")), query)
        zero = op.CastLike(op.Constant(value_float=0.0), query)
        weights = op.Where(real, op.Softmax(op.Where(real, scores, never), axis=-1), zero)
    else:
        heads_ = op.Constant(value_int=num_heads)
        none = op.Concat(
            op.Constant(value_ints=[0]),
            op.Reshape(heads_, op.Constant(value_ints=[1])),
            op.Constant(value_ints=[0, 0]),
            axis=0,
        )
        weights = op.CastLike(op.ConstantOfShape(none), query)
    return weights


def local_functions() -> list[onnx_ir.Function]:
    """Every local function, ready to be added to a model."""
    functions = (AttentionWeights, BiasedAttentionWeights)
    return [onnx_ir.serde.deserialize_function(function.to_function_proto()) for function in functions]
