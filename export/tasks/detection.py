"""Which task a checkpoint is for, by what its files say; one of a task is never taken for another unasked."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from export.errors import UnsupportedModel
from model.tasks.settings import Task

TASK_NAMES = get_args(Task)
ARCHITECTURES: Mapping[str, Task] = {  # endings of the class names that `transformers` writes into config.json
    "Model": "embedding",
    "ForMaskedLM": "embedding",  # what nearly every encoder was trained as before it was anything else
    "ForPreTraining": "embedding",
    "ForSequenceClassification": "classification",
}
OTHER_TASKS = ("classifier.", "qa_outputs.")  # beginnings of tensor names that no embedding has


class Found(NamedTuple):
    """What a checkpoint says of its task.

    Attributes:
        task: None where it is for something that no task here does.
        sign: where that stands, for messages.
        is_stated: whether the checkpoint is whole as this task: its modules are listed, not only its network.
    """

    task: Task | None
    sign: str
    is_stated: bool


def find_task(kinds: Sequence[str], described: Mapping[str, Any], folder: Path) -> Found:
    """Reads the task from the kinds of modules.json, or from the network's architecture where there is none.

    Args:
        kinds: class names of the modules, none where there is no modules.json.
        described: the network's config.json.
        folder: for messages.
    """
    sign = f"{folder / 'modules.json'} lists {', '.join(kinds)}"
    if "SpladePooling" in kinds:
        return Found("sparse", sign, is_stated=True)
    if "Pooling" in kinds:
        return Found("embedding", sign, is_stated=True)
    if "MultiVectorMask" in kinds:
        return Found("multi_vector", sign, is_stated=True)
    if described.get("model_type") == "polyhead":
        return Found(described.get("task", "embedding"), f"{folder / 'config.json'} names its task", is_stated=True)
    classes = described.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""
    if not name:
        return Found("embedding", f"{folder / 'config.json'} names no architecture", is_stated=False)
    ending = next((ending for ending in ARCHITECTURES if name.endswith(ending)), None)
    task = None if ending is None else ARCHITECTURES[ending]
    return Found(task, f"{folder / 'config.json'} names the architecture {name}", is_stated=False)


def choose_task(found: Found, wanted: Task | None) -> Task:
    """The task to export: the one wanted, or else the checkpoint's.

    Raises:
        UnsupportedModel: the checkpoint is for a task that is not supported, and none was named.
    """
    if wanted is not None:
        return wanted
    if found.task is None:
        judge = "; --task classification exports it as a reranker that says yes or no, if that is what it was made for"
        raise UnsupportedModel(
            f"{found.sign}, which is for none of the tasks {', '.join(TASK_NAMES)}: --task embedding exports its "
            f"encoder without the layers of that architecture{judge if found.sign.endswith('ForCausalLM') else ''}"
        )
    return found.task


def refuse_other_tasks(found: Found, wanted: Task | None, tensors: Iterable[str]) -> None:
    """Refuses to leave out the layers of another task where nobody said that this is an embedding.

    Raises:
        UnsupportedModel: names the tensor, and how to say what is wanted.
    """
    if wanted is not None or found.is_stated or found.task != "embedding":
        return
    if left_out := sorted(name for name in tensors if name.startswith(OTHER_TASKS)):
        raise UnsupportedModel(
            f"{found.sign}, and its weights hold {left_out[0]}, which no embedding uses: say --task classification to "
            "export what they are for, or --task embedding to leave them out"
        )
