"""Hessian and Gauss-Newton products by curvlinops on PyTorch; the peer of `curvature_against_torch.py`."""

import pathlib
import sys

import numpy as np
import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator

from harness.peer import serve
from harness.timing import available_cores, seconds

NETWORKS = {
    "convolutional": lambda: torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2),
        torch.nn.Tanh(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 10),
    ),
    "dense": lambda: torch.nn.Sequential(
        torch.nn.Linear(784, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 10)
    ),
}
OPERATORS = {"Hessian": HessianLinearOperator, "Gauss-Newton": GGNLinearOperator}


def to_torch(array):
    """A kernel, or a vector in its shape, with the axes in PyTorch's order."""
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(available_cores())
    current = {}

    def build(network, operator, dtype):
        """Makes the operator and a vector from the arrays of inputs.npz."""
        with np.load(folder / "inputs.npz") as arrays:
            count = sum(name.startswith("weight") for name in arrays.files)
            weights = [arrays[f"weight{number}"] for number in range(count)]
            x, y, vector = arrays["x"], arrays["y"], arrays["vector"]
        model = NETWORKS[network]().to(getattr(torch, dtype))
        with torch.no_grad():
            for weight, parameter in zip(weights, model.parameters(), strict=True):
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(to_torch(weight))))
        x = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2) if x.ndim == 4 else x))
        data = [(x, torch.from_numpy(y))]
        sizes = np.cumsum([weight.size for weight in weights])
        parts = zip(np.split(vector, sizes[:-1]), weights, strict=True)
        vector = np.concatenate([to_torch(part.reshape(weight.shape)).ravel() for part, weight in parts])
        current["vector"] = torch.from_numpy(vector)
        current["operator"] = OPERATORS[operator](model, torch.nn.CrossEntropyLoss(), list(model.parameters()), data)
        current["shapes"] = [weight.shape for weight in weights]

    def product():
        current["product"] = current["operator"] @ current["vector"]

    def save():
        """Writes the product, its axes in Keras' order."""
        result, parts = current["product"].numpy(), []
        for shape in current["shapes"]:
            size = int(np.prod(shape))
            part, result = result[:size], result[size:]
            if len(shape) == 4:
                rows, cols, inputs, outputs = shape
                parts.append(part.reshape(outputs, inputs, rows, cols).transpose(2, 3, 1, 0).ravel())
            else:
                parts.append(part.reshape(shape[::-1]).T.ravel())
        np.save(folder / "product.npy", np.concatenate(parts))

    serve({"build": build, "seconds": lambda: seconds(product), "save": save})


if __name__ == "__main__":
    main()
