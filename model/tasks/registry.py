"""The tasks' definitions by name."""

from collections.abc import Mapping
from types import MappingProxyType

from model.tasks.classification import CLASSIFICATION
from model.tasks.definition import TaskDefinition
from model.tasks.embedding import EMBEDDING
from model.tasks.multi_vector import MULTI_VECTOR
from model.tasks.settings import Task
from model.tasks.sparse import SPARSE

TASKS: Mapping[Task, TaskDefinition] = MappingProxyType(
    {
        "embedding": EMBEDDING,
        "classification": CLASSIFICATION,
        "sparse": SPARSE,
        "multi_vector": MULTI_VECTOR,
    }
)
