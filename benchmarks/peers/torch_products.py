"""Curvature products by curvlinops and hessian-eigenthings on PyTorch; peer of `curvature_against_torch.py`."""

import pathlib
import sys

import curvlinops
import hessian_eigenthings
import numpy as np
import torch

from harness.peer import serve
from harness.timing import available_cores, seconds


def convolutional():
    """Return the network of the same name in `curvature_against_torch.py`."""
    layers = [torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.Tanh(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 10))


def dense():
    """Return the network of the same name in `curvature_against_torch.py`."""
    layers = [torch.nn.Linear(784, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(256, 10))


def deep(width=64):
    """Return the network of the same name in `curvature_against_torch.py`."""
    layers, channels = [], 3
    for stage in range(3):
        for _ in range(2):
            layers += [torch.nn.Conv2d(channels, width << stage, 3, padding=1), torch.nn.ReLU()]
            channels = width << stage
        layers.append(torch.nn.AvgPool2d(2) if stage < 2 else torch.nn.AdaptiveAvgPool2d(1))
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(channels, 10))


NETWORKS = {"convolutional": convolutional, "dense": dense, "deep": deep}


def operators(name, model, data):
    """Return the curvature operator of each library."""
    criterion = torch.nn.CrossEntropyLoss()
    if name == "Hessian":
        kind = curvlinops.HessianLinearOperator
        other = hessian_eigenthings.HessianOperator(model, data, hessian_eigenthings.supervised_loss(criterion))
    else:
        kind = curvlinops.GGNLinearOperator
        other = hessian_eigenthings.GGNOperator(
            model,
            data,
            hessian_eigenthings.supervised_forward,
            hessian_eigenthings.supervised_loss_of_output(criterion),
        )
    return {"curvlinops": kind(model, criterion, list(model.parameters()), data), "hessian-eigenthings": other}


def to_torch(array):
    """Return a kernel, or a vector in the shape of one, with the axes in PyTorch's order."""
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(available_cores())
    current = {}

    def build(network, operator, dtype):
        """Build the operators and a vector from the arrays of inputs.npz."""
        with np.load(folder / "inputs.npz") as arrays:
            count = sum(name.startswith("weight") for name in arrays.files)
            weights = [arrays[f"weight{number}"] for number in range(count)]
            x, y, vector = arrays["x"], arrays["y"], arrays["vector"]
        model = NETWORKS[network]().to(getattr(torch, dtype))
        with torch.no_grad():
            for weight, parameter in zip(weights, model.parameters(), strict=True):
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(to_torch(weight))))
        x = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2) if x.ndim == 4 else x))
        sizes = np.cumsum([weight.size for weight in weights])
        parts = zip(np.split(vector, sizes[:-1]), weights, strict=True)
        vector = np.concatenate([to_torch(part.reshape(weight.shape)).ravel() for part, weight in parts])
        current["vector"] = torch.from_numpy(vector)
        current["operators"] = operators(operator, model, [(x, torch.from_numpy(y))])
        current["shapes"] = [weight.shape for weight in weights]

    def product(library):
        current["product"] = current["operators"][library] @ current["vector"]

    def save(library):
        """Write a product with the axes in Keras' order."""
        product(library)
        result, parts = current["product"].detach().numpy(), []
        for shape in current["shapes"]:
            size = int(np.prod(shape))
            part, result = result[:size], result[size:]
            if len(shape) == 4:
                rows, cols, inputs, outputs = shape
                parts.append(part.reshape(outputs, inputs, rows, cols).transpose(2, 3, 1, 0).ravel())
            else:
                parts.append(part.reshape(shape[::-1]).T.ravel())
        np.save(folder / "product.npy", np.concatenate(parts))

    serve({"build": build, "seconds": lambda library: seconds(lambda: product(library)), "save": save})


if __name__ == "__main__":
    main()
