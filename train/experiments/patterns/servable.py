"""A trained network as the encoder that is served, which reads one token a place where the tasks have several.

Each word of a task is therefore a token, whose embedding is the sum of those that the network learned.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

from export.checkpoint import Checkpoint, build_encoder
from export.pruning.removal import remove_heads
from model.artifact import Defaults, Source
from model.config import EncoderConfig
from model.config_parts import ClassificationSettings
from model.encoder import Encoder
from train.experiments.patterns.network import Network, Row
from train.experiments.patterns.tasks import PLACES, TASKS, Task, texts_of, vocabulary
from train.folder import write_network
from train.gates import fold_gates

EXAMPLES = 3  # texts of the task, which the viewer begins with
UNKNOWN = "[UNK]"  # id 0: adds nothing to its place
EPSILON = torch.finfo(torch.float32).eps  # the default of `torch.nn.functional.rms_norm`


def encoder_of(network: Network, seed: int) -> Encoder:
    """One of the networks side by side, by its seed's place, without the heads whose gates are closed.

    It is in evaluation mode; its output [B, A * C] are the network's logits, for token ids of `vocabulary`.
    """
    row, task = network.row, TASKS[network.row.task]
    state = {
        "embeddings.token.weight": _word_embeddings(task, network.tokens[seed]),
        "embeddings.position.weight": network.places[seed],
        "task_layers.output.weight": network.answer[seed].T,
    }
    norms = ["final_norm"]
    for layer, part in enumerate(network.parts):
        place = f"layers.{layer}"
        norms += [f"{place}.attention_norm", f"{place}.feed_forward_norm"]
        state |= {f"{place}.attention.{key}.weight": part[key][seed].T for key in ("query", "key", "value", "output")}
        none = {"up": torch.zeros(row.width, 1), "bias": torch.zeros(1, 1), "down": torch.zeros(1, row.width)}
        up, bias, down = (part[name][seed] if name in part else zeros for name, zeros in none.items())
        state |= {f"{place}.feed_forward.{name}.weight": weight.T for name, weight in (("up", up), ("down", down))}
        state[f"{place}.feed_forward.up.bias"] = bias[0]
    state |= {f"{name}.weight": torch.ones(row.width) for name in norms}
    encoder = build_encoder(config_of(row), {name: part.detach().contiguous() for name, part in state.items()})
    if not row.gated:
        return encoder
    gates = network.gates_of_seeds[seed].settled()
    closed = [head for head, gate in enumerate(gates.tolist()) if gate == 0]
    return remove_heads(fold_gates(encoder, gates), closed)


def config_of(row: Row) -> EncoderConfig:
    """The configuration that expresses a row's network, with every head."""
    task = TASKS[row.task]
    labels = task.labels
    if task.answers > 1:
        labels = tuple(f"{answer}: {label}" for answer in range(1, task.answers + 1) for label in task.labels)
    return EncoderConfig(
        vocab_size=1 + len(task.words()),
        hidden_size=row.width,
        num_heads=(row.heads,) * row.layers,
        d_k=row.d_k,
        d_v=row.d_v,
        intermediate_size=4 * row.width if row.feed_forward else 1,
        max_positions=PLACES + 1,
        activation="relu",
        down_bias=False,
        attention_bias=False,
        output_bias=False,
        norm="rms_norm",
        norm_eps=EPSILON,
        pre_norm=True,
        embedding_norm=False,
        final_norm=True,
        pooling="last",
        task="classification",
        task_settings=ClassificationSettings(
            labels=labels,
            activation="softmax" if task.answers == 1 else "identity",
            dense_activation=None,
            output_bias=False,
        ),
    )


def write_servable(folder: Path, network: Network, seed: int) -> None:
    """Writes one of the networks as a folder that `polyhead serve` and `polyhead export` take, of the model's name."""
    encoder, task = encoder_of(network, seed), TASKS[network.row.task]
    tokenizer = Tokenizer(WordLevel({UNKNOWN: 0, **vocabulary(task)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    ids, _ = task.make(EXAMPLES, torch.Generator().manual_seed(0))
    write_network(
        folder,
        encoder,
        Checkpoint(
            name=folder.name,
            source=Source(id=folder.name, revision=None, sha256=""),
            encoder=encoder,
            tokenizer=tokenizer,
            defaults=Defaults(pooling="last", normalize=False, prompts={}, default_prompt_name=None),
            max_sequence_length=PLACES + 1,
            examples=tuple(texts_of(task, ids)),
        ),
    )


def _word_embeddings(task: Task, tokens: Tensor) -> Tensor:
    """Sums of tokens' embeddings [tokens, D] -> [words, D], the first one 0."""
    words = task.words().values()
    size = max(map(len, words))
    ids = torch.tensor([[0] * size, *([*word, *[0] * (size - len(word))] for word in words)])
    return (tokens[ids] * (ids > 0)[..., None]).sum(dim=1)
