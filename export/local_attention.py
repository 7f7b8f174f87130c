"""Attention of a layer with a window, in blocks of queries where a text is long: a model-local ONNX function.

A dense layer computes S^2 scores and hides all but S (2 window + 1) of them. A block of 2 h queries with the 4 h keys
around it computes 4 S h, h being at least the window. Short texts stay dense, where cutting costs more than it saves.
"""

from onnxscript import script
from onnxscript.onnx_opset import opset24 as op
from onnxscript.values import Opset

from model.head_gates import FUNCTIONS_DOMAIN, FUNCTIONS_VERSION

_polyhead = Opset(FUNCTIONS_DOMAIN, FUNCTIONS_VERSION)


@script(_polyhead, default_opset=op)
def Blocks(x, half: int):  # noqa: N802 - an operator
    """Rows of 2 h tokens: [B, S, C] -> [B * blocks, 2 h, C], zeros behind the end."""
    two = op.Constant(value_ints=[2])
    size = op.Mul(op.Reshape(op.Constant(value_int=half), op.Constant(value_ints=[1])), two)
    behind = op.Mod(op.Neg(op.Shape(x, start=1, end=2)), size)
    padded = op.Pad(x, op.Concat(op.Constant(value_ints=[0]), behind, axis=0), None, op.Constant(value_ints=[1]))
    return op.Reshape(padded, op.Concat(op.Constant(value_ints=[-1]), size, op.Shape(x, start=2, end=3), axis=0))


@script(_polyhead, default_opset=op)
def Neighbours(x, half: int):  # noqa: N802 - an operator
    """The 4 h tokens around each block of 2 h, [B, S, C] -> [B * blocks, 4 h, C], zeros outside the text."""
    one, two, three = op.Constant(value_ints=[1]), op.Constant(value_ints=[2]), op.Constant(value_ints=[3])
    h = op.Reshape(op.Constant(value_int=half), one)
    behind = op.Add(op.Mod(op.Neg(op.Shape(x, start=1, end=2)), op.Mul(h, two)), h)
    padded = op.Pad(x, op.Concat(h, behind, axis=0), None, one)
    last, rest = op.Shape(x, start=2, end=3), op.Constant(value_ints=[-1])
    halves = op.Reshape(
        padded, op.Concat(op.Shape(x, start=0, end=1), rest, h, last, axis=0)
    )  # [B, 2 blocks + 2, h, C]
    end = op.Sub(op.Shape(halves, start=1, end=2), two)
    first = op.Slice(halves, op.Constant(value_ints=[0]), end, one, two)
    second = op.Slice(halves, one, op.Add(end, one), one, two)
    third = op.Slice(halves, two, op.Add(end, two), one, two)
    fourth = op.Slice(halves, three, op.Add(end, three), one, two)
    around = op.Concat(first, second, third, fourth, axis=2)  # [B, blocks, 4 h, C]
    return op.Reshape(around, op.Concat(rest, op.Mul(h, op.Constant(value_ints=[4])), last, axis=0))


@script(_polyhead, default_opset=op)
def BlockBias(query, lengths, half: int, behind: int, ahead: int, lowest: float):  # noqa: N802, PLR0917 - an operator
    """0 where a query of a block sees a key, else the lowest value: [B * blocks, 1, 2 h, 4 h].

    A query sees the real keys from `behind` tokens before it to `ahead` tokens after it.
    """
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    h = op.Constant(value_int=half)
    size = op.Add(h, h)
    sequence = op.Squeeze(op.Shape(query, start=1, end=2))
    blocks = op.Div(op.Sub(op.Add(sequence, size), one), size)
    keys = op.Sub(op.Range(zero, op.Add(size, size), one), h)  # [4 h], from the block's first query
    offsets = op.Sub(op.Unsqueeze(keys, [0]), op.Unsqueeze(op.Range(zero, size, one), [1]))  # [2 h, 4 h]
    near = op.And(
        op.GreaterOrEqual(offsets, op.Neg(op.Constant(value_int=behind))),
        op.LessOrEqual(offsets, op.Constant(value_int=ahead)),
    )
    places = op.Add(op.Unsqueeze(op.Mul(op.Range(zero, blocks, one), size), [1]), keys)  # [blocks, 4 h]
    real = op.And(op.GreaterOrEqual(places, zero), op.Less(places, op.Unsqueeze(lengths, [1, 2])))  # [B, blocks, 4 h]
    seen = op.And(op.Unsqueeze(real, [2]), near)  # [B, blocks, 2 h, 4 h]
    values = op.Where(seen, op.Constant(value_float=0.0), op.Constant(value_float=lowest))
    rows = op.Reshape(values, op.Concat(op.Constant(value_ints=[-1]), op.Shape(near), axis=0))
    return op.CastLike(op.Unsqueeze(rows, [1]), query)


@script(_polyhead, default_opset=op)
def LocalAttention(  # noqa: N802, PLR0917 - an operator
    query,
    key,
    value,
    lengths,
    bias,
    num_heads: int,
    num_key_value_heads: int,
    scale: float,
    half: int,
    behind: int,
    ahead: int,
    lowest: float,
    longest_dense: int,
):
    """Fused attention of a layer with a window.

    query: [B, S, H*K]; key, value: [B, S, G*K] and [B, S, G*V]; lengths: int64 [B]; bias: [1, 1, S, S], what it is
    with all keys at once. Returns [B, S, H*V]; rows of padded queries hold anything.
    """
    sequence = op.Shape(query, start=1, end=2)
    one = op.Constant(value_ints=[1])
    is_long = op.Greater(sequence, op.Reshape(op.Constant(value_int=longest_dense), one))
    if is_long:
        queries, keys, values = Blocks(query, half=half), Neighbours(key, half=half), Neighbours(value, half=half)
        hidden = BlockBias(query, lengths, half=half, behind=behind, ahead=ahead, lowest=lowest)
        sizes = op.Expand(op.Shape(keys, start=1, end=2), op.Shape(keys, start=0, end=1))
    else:
        queries, keys, values = op.Identity(query), op.Identity(key), op.Identity(value)
        hidden, sizes = op.Identity(bias), op.Identity(lengths)
    context = op.Attention(
        queries,
        keys,
        values,
        hidden,
        None,
        None,
        sizes,
        q_num_heads=num_heads,
        kv_num_heads=num_key_value_heads,
        scale=scale,
    )
    last = op.Shape(context, start=2, end=3)
    rows = op.Reshape(context, op.Concat(op.Shape(query, start=0, end=1), op.Constant(value_ints=[-1]), last, axis=0))
    return op.Slice(rows, op.Constant(value_ints=[0]), sequence, one)
