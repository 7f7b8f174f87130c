"""Model-local ONNX functions, domain `polyhead`: what the graph computes on demand next to the fused operators.

A function survives the exporter's passes as one node, which is then inlined by ONNX Runtime at load.

A layer with a window attends in blocks of queries if a text is long. A dense layer computes S^2 scores and hides all
but S (2 window + 1) of them. A block of 2 h queries with the 4 h keys around it computes 4 S h, h being at least the
window. Short texts stay dense, since cutting costs more than it saves.
"""

import onnx_ir
from onnxscript import script
from onnxscript.onnx_opset import opset24 as op
from onnxscript.values import Opset

from model.value_stream import FUNCTIONS_DOMAIN, FUNCTIONS_VERSION

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
def Scores(query, key, num_heads: int, num_key_value_heads: int, scale: float):  # noqa: N802 - an operator
    """Q K^T * scale per head. query: [B, S, H*K]; key: [B, S, G*K], each read by H/G heads. Returns [B, H, S, S]."""
    one = op.Constant(value_ints=[1])
    kept, rest = op.Constant(value_ints=[0, 0]), op.Constant(value_ints=[-1])
    heads = op.Reshape(op.Constant(value_int=num_heads), one)
    shared = op.Reshape(op.Constant(value_int=num_key_value_heads), one)
    size = op.Div(op.Shape(key, start=2, end=3), shared)
    q = op.Transpose(op.Reshape(query, op.Concat(kept, shared, rest, size, axis=0)), perm=[0, 2, 3, 1, 4])
    k_transposed = op.Transpose(op.Reshape(key, op.Concat(kept, shared, one, size, axis=0)), perm=[0, 2, 3, 4, 1])
    scores = op.Mul(op.MatMul(q, k_transposed), op.CastLike(op.Constant(value_float=scale), query))
    sequence = op.Shape(query, start=1, end=2)
    return op.Reshape(scores, op.Concat(op.Constant(value_ints=[0]), heads, sequence, sequence, axis=0))


@script(_polyhead, default_opset=op)
def MaskedSoftmax(scores, lengths):  # noqa: N802 - an operator
    """Softmax over the real keys; scores: [B, H, S, S]; lengths: int64 [B]. Padded keys are exactly 0."""
    sequence = op.Squeeze(op.Shape(scores, start=3))
    positions = op.Range(op.Constant(value_int=0), sequence, op.Constant(value_int=1))
    real = op.Unsqueeze(op.Less(positions, op.Unsqueeze(lengths, [1])), [1, 2])
    never = op.CastLike(op.Constant(value_float=float("-inf")), scores)
    zero = op.CastLike(op.Constant(value_float=0.0), scores)
    return op.Where(real, op.Softmax(op.Where(real, scores, never), axis=-1), zero)


@script(_polyhead, default_opset=op)
def NoWeights(like, num_heads: int):  # noqa: N802 - an operator
    """[0, H, 0, 0] of the type of `like`."""
    heads = op.Reshape(op.Constant(value_int=num_heads), op.Constant(value_ints=[1]))
    none = op.Concat(op.Constant(value_ints=[0]), heads, op.Constant(value_ints=[0, 0]), axis=0)
    return op.CastLike(op.ConstantOfShape(none), like)


@script(_polyhead, default_opset=op)
def AttentionWeights(query, key, lengths, wanted, num_heads: int, num_key_value_heads: int, scale: float):  # noqa: N802, PLR0917 - an operator
    """softmax(Q K^T * scale) per head over the real keys, where wanted.

    query, key: [B, S, H*K]; lengths: int64 [B]; wanted: bool [1]. Returns [B, H, S, S], padded keys exactly 0, rows
    of padded queries anything; or [0, H, 0, 0] where not wanted.
    """
    if wanted:
        scores = Scores(query, key, num_heads=num_heads, num_key_value_heads=num_key_value_heads, scale=scale)
        weights = MaskedSoftmax(scores, lengths)
    else:
        weights = NoWeights(query, num_heads=num_heads)
    return weights


@script(_polyhead, default_opset=op)
def BiasedAttentionWeights(query, key, lengths, wanted, bias, num_heads: int, num_key_value_heads: int, scale: float):  # noqa: N802, PLR0917 - an operator
    """softmax(Q K^T * scale + bias) per head over the real keys, where wanted; bias: [1, H or 1, S, S].

    Else as `AttentionWeights`: a function's body cannot tell whether an input is missing.
    """
    if wanted:
        scores = Scores(query, key, num_heads=num_heads, num_key_value_heads=num_key_value_heads, scale=scale)
        weights = MaskedSoftmax(op.Add(scores, bias), lengths)
    else:
        weights = NoWeights(query, num_heads=num_heads)
    return weights


@script(_polyhead, default_opset=op)
def GatedContext(context, packed, head_gates, null_context, num_heads: int, first_head: int):  # noqa: N802, PLR0917 - an operator
    """The context of the real tokens, each head multiplied by its gate where gates are given.

    context: [B*S, H*V]; packed: int64 [T]; head_gates: float32 [B, sum of all layers' heads], or no rows for no gates;
    null_context: [H, V], the context that adds nothing. Returns [T, H*V]. Without gates it is one Gather, which
    packing needs anyway. A head whose gate is 1 keeps its bits, so that texts with and without gates can share a batch;
    ONNX Runtime's Where drops the sign of a zero, which no sum behind it shows.
    """
    rows = op.Shape(head_gates, start=0, end=1)
    given = op.Greater(rows, op.Constant(value_ints=[0]))
    if given:
        first = op.Reshape(op.Constant(value_int=first_head), op.Constant(value_ints=[1]))
        end = op.Add(first, op.Reshape(op.Constant(value_int=num_heads), op.Constant(value_ints=[1])))
        axis = op.Constant(value_ints=[1])
        gates = op.Unsqueeze(op.Slice(head_gates, first, end, axis), op.Constant(value_ints=[1, 3]))
        one = op.Constant(value_float=1.0)
        flat = op.Shape(context)
        heads = op.Concat(rows, op.Constant(value_ints=[-1]), op.Shape(null_context), axis=0)
        split = op.Reshape(op.Cast(context, to=1), heads)
        moved = op.Add(op.Mul(split, gates), op.Mul(op.Cast(null_context, to=1), op.Sub(one, gates)))
        gated = op.Where(op.Equal(gates, one), split, moved)
        rows_packed = op.CastLike(op.Gather(op.Reshape(gated, flat), packed), context)
    else:
        rows_packed = op.Gather(context, packed)
    return rows_packed


@script(_polyhead, default_opset=op)
def ValueNorms(value, null_context, factor, wanted, num_heads: int):  # noqa: N802 - an operator
    """||(v - null_context) factor|| of each token and head, where wanted.

    value: [B, S, G*V], each of G heads read by H/G; null_context: [H, V]; factor: [H, V, R]; wanted: bool [1]. Returns
    float32 [B, H, S], padded tokens anything; or [0, H, 0] where not wanted.
    """
    if wanted:
        kept, size = op.Constant(value_ints=[0, 0]), op.Shape(null_context, start=1, end=2)
        rest, one = op.Constant(value_ints=[-1]), op.Constant(value_ints=[1])
        grouped = op.Reshape(value, op.Concat(kept, rest, one, size, axis=0))
        shared = op.Shape(grouped, start=2, end=3)
        null = op.Reshape(null_context, op.Concat(shared, rest, size, axis=0))
        shape = op.Concat(kept, op.Shape(null_context), axis=0)
        split = op.Transpose(op.Reshape(op.Sub(grouped, null), shape), perm=[0, 2, 1, 3])
        moved = op.Cast(op.MatMul(split, factor), to=1)
        norms = op.ReduceL2(moved, op.Constant(value_ints=[-1]), keepdims=0)
    else:
        heads = op.Constant(value_int=num_heads)
        zero = op.Constant(value_ints=[0])
        none = op.Concat(zero, op.Reshape(heads, op.Constant(value_ints=[1])), zero, axis=0)
        norms = op.ConstantOfShape(none)
    return norms


@script(_polyhead, default_opset=op)
def LargestLogits(hidden, table, bias, chunk_tokens: int):  # noqa: N802 - an operator
    """max(0, max over S of hidden table^T + bias), a chunk of positions at a time.

    hidden: [B, S, D], padded rows repeating a real token; table: [vocabulary, D]; bias: [vocabulary]. Returns
    [B, vocabulary]. A chunk holds about chunk_tokens tokens of all texts, at least one of each.
    """
    axis = op.Constant(value_ints=[1])
    batch = op.Shape(hidden, start=0, end=1)
    size = op.Shape(hidden, start=2, end=3)
    words = op.Shape(table, start=0, end=1)
    tokens = op.Reshape(op.Constant(value_int=chunk_tokens), axis)
    positions = op.Max(op.Div(tokens, batch), axis)
    rest = op.Constant(value_ints=[-1])
    sequence = op.Shape(hidden, start=1, end=2)
    chunks = op.Squeeze(op.Div(op.Sub(op.Add(sequence, positions), axis), positions))
    largest = op.Expand(op.CastLike(op.Constant(value_float=0.0), hidden), op.Concat(batch, words, axis=0))
    for chunk in range(chunks):
        start = op.Mul(op.Reshape(chunk, axis), positions)
        part = op.Slice(hidden, start, op.Add(start, positions), axis)
        logits = op.Gemm(op.Reshape(part, op.Concat(rest, size, axis=0)), table, bias, transB=1)
        rows = op.Reshape(logits, op.Concat(batch, rest, words, axis=0))
        largest = op.Max(largest, op.ReduceMax(rows, axis, keepdims=0))
    return largest


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


def local_functions() -> list[onnx_ir.Function]:
    """Every local function, ready to be added to a model."""
    attention = (Scores, MaskedSoftmax, NoWeights, AttentionWeights, BiasedAttentionWeights, GatedContext, ValueNorms)
    local = (Blocks, Neighbours, BlockBias, LocalAttention)
    scripts = (*attention, *local, LargestLogits)
    functions = [onnx_ir.serde.deserialize_function(function.to_function_proto()) for function in scripts]
    for function in functions:
        function.opset_imports[FUNCTIONS_DOMAIN] = FUNCTIONS_VERSION  # some call others, which onnxscript does not note
    return functions
