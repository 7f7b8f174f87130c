"""Whether a tokenizer makes pairs of texts as the original does, for networks that classify them.

A pair is one row: both texts, the family's separators between them, and token types where the network has them and the
original's tokenizer gives them.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from export.errors import UnsupportedModel
from export.json_files import read_json
from export.tokenizer import UNIGRAM_KINDS
from export.vocabulary import BYTE_LEVEL_KINDS, WORDPIECE_KINDS, tokenizer_kind

TWO_SEPARATORS = (*BYTE_LEVEL_KINDS, *UNIGRAM_KINDS, "mpnet")  # classes of `transformers`: <s> A </s></s> B </s>
ONE_SEPARATOR = WORDPIECE_KINDS  # [CLS] A [SEP] B [SEP]
GIVE_TYPES = ("bert", "electra")  # classes whose second text has token type 1


def prepare_pairs(tokenizer: Tokenizer, folder: Path, *, has_types: bool) -> tuple[Tokenizer, bool]:
    """The tokenizer with the original's token types, and whether it makes pairs.

    Args:
        tokenizer: made from the folder's files.
        folder: where they are.
        has_types: whether the network has token types.

    Raises:
        UnsupportedModel: its pairs are not those of its class in `transformers`.
    """
    settings = read_json(folder / "tokenizer_config.json", optional=True)
    kind = tokenizer_kind(settings, read_json(folder / "config.json", optional=True))
    _require_template(tokenizer, kind, folder)
    if has_types and not _gives_types(settings, kind):
        tokenizer = _without_types(tokenizer)
    elif has_types and kind in GIVE_TYPES and tokenizer.encode("", "").type_ids != [0, 0, 1]:
        raise UnsupportedModel(
            f"{folder}: tokenizer.json gives the parts of a pair the token types {tokenizer.encode('', '').type_ids}, "
            "its class in `transformers` [0, 0, 1]: which is right?"
        )
    return tokenizer, tokenizer.num_special_tokens_to_add(is_pair=True) > tokenizer.num_special_tokens_to_add(False)


def _require_template(tokenizer: Tokenizer, kind: str, folder: Path) -> None:
    """What stands around two texts is what stands around one, and the separators of the class."""
    around, found = tokenizer.encode("").tokens, tokenizer.encode("", "").tokens
    if kind in TWO_SEPARATORS:
        expected = [*around, around[-1], around[-1]]
    elif kind in ONE_SEPARATOR:
        expected = [*around, around[-1]]
    else:
        return  # of this class `transformers` takes tokenizer.json as it stands
    if found != expected:
        raise UnsupportedModel(
            f"{folder}: tokenizer.json puts {' '.join(found) or 'nothing'} around a pair, its class in `transformers` "
            f"{' '.join(expected)}: which is right?"
        )


def _gives_types(settings: dict[str, Any], kind: str) -> bool:
    """Whether the original's tokenizer tells the network which text a token is of."""
    named = settings.get("model_input_names")
    return "token_type_ids" in named if isinstance(named, list) else kind in GIVE_TYPES


def _without_types(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokens, all of type 0."""
    described = json.loads(tokenizer.to_str())
    if described["post_processor"] is not None:
        _clear_types(described["post_processor"])
    made = Tokenizer.from_str(json.dumps(described))
    if any(made.encode("a", "a").type_ids):
        raise UnsupportedModel(
            "the network has token types, which its tokenizer does not give, and tokenizer.json does"
        )
    return made


def _clear_types(part: Any) -> None:
    """Sets every `type_id` of a post-processor to 0, however deep it stands."""
    if isinstance(part, dict):
        if "type_id" in part:
            part["type_id"] = 0
        for value in part.values():
            _clear_types(value)
    elif isinstance(part, list):
        for value in part:
            _clear_types(value)
