"""Linear layers fitted to data in closed form, and what leaving out some of their inputs would cost.

Everything is in float64 and follows from two sums over tokens, the Gram matrix of the inputs and their product with
what the outputs lack.
"""

import torch
from torch import Tensor, nn

RIDGE = 1e-3  # of the mean square of an input; keeps weights where the data say little


class LeastSquares:
    """Collects inputs F [T, n] and outputs that are missing M [T, m]; solves for the change of the weights.

    The change minimises `sum_t w_t ||F_t change - M_t||^2 + ridge ||change||^2`, so that without evidence weights stay
    as they are. A column of ones stands for the bias where there is one.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        self.bias = bias
        self.gram = torch.zeros(inputs + bias, inputs + bias, dtype=torch.float64)
        self.cross = torch.zeros(inputs + bias, outputs, dtype=torch.float64)

    def add(self, inputs: Tensor, missing: Tensor, weights: Tensor) -> None:
        """Takes in tokens: inputs [T, n], missing [T, m], weights [T]."""
        if self.bias:
            inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], dim=1)
        weighted = (inputs * weights[:, None]).T  # [n, T]
        self.gram += (weighted @ inputs).double()
        self.cross += (weighted @ missing).double()

    def solve(self, ridge: float = RIDGE) -> Tensor:
        """The change of the weights [n (+ 1 for the bias), m]."""
        change: Tensor = torch.linalg.solve(self.ridged(ridge), self.cross)
        return change

    def ridged(self, ridge: float = RIDGE) -> Tensor:
        """The Gram matrix with the ridge on its diagonal."""
        return self.gram + ridge * self.gram.diagonal().mean() * torch.eye(len(self.gram), dtype=torch.float64)

    def change(self, layer: nn.Linear) -> None:
        """Adds the solution to a layer's weights in place."""
        change = self.solve().to(layer.weight.dtype)
        with torch.no_grad():
            if layer.bias is not None:
                layer.bias.add_(change[-1])
            layer.weight.add_(change[: layer.in_features].T)


def removal_costs(gram: Tensor, weights: Tensor, *, blocks: int, size: int) -> tuple[list[int], list[float]]:
    """In which order blocks of inputs are best left out, where the rest is fitted anew after each.

    The optimal brain surgeon for blocks (Hassibi and Stork 1993; Frantar and Alistarh 2022): without block q, and with
    the best other weights, the squared error grows by `tr(W_q^T [(G^-1)_qq]^-1 W_q)`.

    Args:
        gram: [n, n] of the inputs; the last rows may be others', such as the bias's, which stay.
        weights: [n, m], exact for the data that `gram` is from.
        blocks: how many there are, one behind the other from the first input on.
        size: inputs of a block.

    Returns:
        Blocks in the order of removal, and the error that each adds to those before it.
    """
    left = {index: torch.arange(index * size, (index + 1) * size) for index in range(blocks)}
    inverse, weights = torch.linalg.inv(gram), weights.double().clone()
    order, costs = [], []
    while left:
        found = {index: float(_cost(inverse, weights, rows)) for index, rows in left.items()}
        best = min(found, key=found.__getitem__)
        order.append(best)
        costs.append(found[best])
        rows = left.pop(best)
        repair = inverse[:, rows] @ torch.linalg.inv(inverse[rows][:, rows])  # [n, size]
        weights -= repair @ weights[rows]
        inverse = inverse - repair @ inverse[rows]
    return order, costs


def _cost(inverse: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
    cost: Tensor = (weights[rows] * torch.linalg.solve(inverse[rows][:, rows], weights[rows])).sum()
    return cost
