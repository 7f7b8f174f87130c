"""The text that a model wants in front of its inputs, such as `query: `, by its name or as it stands.

A prompt is put before a text as sentence-transformers does it: the two joined are tokenised, truncated and encoded, and
pooled over all of their tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from model.manifest import Defaults
from service.errors import Invalid
from service.tokenization.inputs import Inputs

MAX_PROMPT_CHARACTERS = 1024  # it stands before every text of a request: what is short to send may be long to tokenise


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; `name` is None where the request held its text."""

    text: str
    name: str | None = None

    def document(self) -> dict[str, str]:
        """The answer's fields that say what was used."""
        return {"prompt": self.text} if self.name is None else {"prompt_name": self.name, "prompt": self.text}

    def before(self, texts: Sequence[str]) -> list[str]:
        """The texts as the model gets them."""
        return [self.text + text for text in texts]


def choose_prompt(
    defaults: Defaults, *, name: str | None, text: str | None, name_param: str = "prompt_name"
) -> Prompt | None:
    """The prompt of a request: as it says, else the model's default, else none. An empty text means none.

    Raises:
        Invalid: both are given, or the model has no prompt of that name.
    """
    if text is not None:
        if name is not None:
            raise Invalid("prompt: give either prompt or prompt_name", param="prompt")
        return Prompt(text) if text else None
    if name is None:
        name = defaults.default_prompt_name
        return None if name is None or name not in defaults.prompts else Prompt(defaults.prompts[name], name)
    if name not in defaults.prompts:
        raise Invalid(f"{name_param}: {_known(defaults)}", param=name_param)
    return Prompt(defaults.prompts[name], name)


def with_prompt(
    defaults: Defaults, inputs: Inputs, *, name: str | None, text: str | None
) -> tuple[Prompt | None, Inputs]:
    """The prompt that a request gets, None where it gets none, and its inputs with that before each.

    Token ids are used as given: the model's default prompt is for texts.

    Raises:
        Invalid: no such prompt, or one is asked for before token ids.
    """
    prompt = choose_prompt(defaults, name=name, text=text)
    if prompt is None:
        return None, inputs
    if inputs.texts is not None:
        return prompt, replace(inputs, texts=prompt.before(inputs.texts))
    if inputs.is_paired and (name is not None or text is not None):
        raise Invalid("prompt: pairs are read without a prompt; leave it out", param="prompt")
    if name is not None or text is not None:
        param = "prompt_name" if text is None else "prompt"
        raise Invalid(f"{param}: token ids are used as given; send texts, or ids that begin with its own", param=param)
    return None, inputs


def _known(defaults: Defaults) -> str:
    if not defaults.prompts:
        return "this model has no named prompts; give its text as prompt"
    return f"expected one of {', '.join(sorted(defaults.prompts))}"
