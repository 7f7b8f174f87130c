"""Several processes that train one network, each on its share of every batch (`torchrun`).

Every process computes the whole batch's loss, to which vectors of the others' texts are constants: its gradients add up
to the gradient of one process on the whole batch.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.errors import RunError


class Processes:
    """This process, the `rank`th of `count` that train together; alone where `torchrun` did not start it."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count

    @property
    def is_first(self) -> bool:
        """Whether this process writes and shows."""
        return self.rank == 0

    def rows(self, total: int) -> slice:
        """This process's rows of a batch; RunError if there are fewer rows than processes."""
        if total < self.count:
            raise RunError(f"a batch of {total} cannot be shared by {self.count} processes: give a larger --batch-size")
        return slice(self.rank * total // self.count, (self.rank + 1) * total // self.count)

    def gather(self, own: Tensor, total: int) -> Tensor:
        """All rows [total, ...] from every process's own; gradients reach this process's only."""
        if self.count == 1:
            return own
        rows = self.rows(total)
        whole = own.new_zeros(total, *own.shape[1:])
        whole[rows] = own.detach()
        dist.all_reduce(whole)
        return torch.cat([whole[: rows.start], own, whole[rows.stop :]])

    def total(self, own: Tensor) -> Tensor:
        """The sum over all processes; gradients reach this process's part only."""
        if self.count == 1:
            return own
        whole = own.detach().clone()
        dist.all_reduce(whole)
        return own + (whole - own.detach())

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sums every parameter's gradient over the processes, in place."""
        if self.count > 1:
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)

    def any(self, mine: bool) -> bool:
        """Whether it is so in any process."""
        return bool(self.total(torch.tensor(float(mine))) > 0)

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            dist.barrier()


ALONE = Processes()


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """While this holds, the process works with those that `torchrun` started; RunError if there is no such device."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    try:
        if count > 1 and device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        raise RunError(f"--device {device} cannot be used: {' '.join(str(error).split())}") from error
    if count == 1:
        yield ALONE
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), count)
    finally:
        dist.destroy_process_group()


def from_first(tensor: Tensor) -> Tensor:
    """The first process's, in each of those that train together: each measures times of its own."""
    if dist.is_initialized():
        dist.broadcast(tensor, 0)
    return tensor


def generator_of(*parts: int) -> torch.Generator:
    """A generator for a seed and, say, an epoch or a step; other parts give unrelated numbers."""
    return torch.Generator().manual_seed(seed_of(*parts))


def seed_of(*parts: int) -> int:
    """A seed for a seed and, say, a step and a process; torch's generators take 32 bits of it."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def random_states() -> list[Tensor]:
    """States of torch's generators, of the CPU and of each GPU; of a GPU whose driver is too old there is none."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def set_random_states(states: list[Tensor]) -> None:
    """Goes back to where `random_states` was called."""
    torch.set_rng_state(states[0])
    torch.cuda.set_rng_state_all(states[1:])
