"""Network of Table 1 in PyTorch, trained from given weights; peer of `training_step.py`."""

import json
import pathlib
import sys

import numpy as np
import torch
from torch.nn import functional

from harness.peer import serve
from harness.timing import available_cores, seconds


def make_step(settings, images, labels, weights, memory_format):
    """Return a function that takes one training step and returns the loss.

    Args:
        settings: `blocks`, `learning_rate`, `weight_decay`, `precision`.
        images, labels: batch, channels last.
        weights: kernel of the stem, kernels of all blocks, matrix of the head, in Keras' axis order.
        memory_format: "contiguous_format" or "channels_last".
    """
    layout = getattr(torch, memory_format)
    stem, *kernels, head = (torch.from_numpy(weight) for weight in weights)
    kernels = [kernel.permute(3, 2, 0, 1).contiguous(memory_format=layout) for kernel in (stem, *kernels)]
    kernels = [kernel.requires_grad_() for kernel in kernels]
    images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(memory_format=layout)
    labels = torch.from_numpy(labels).long()
    decay = settings["weight_decay"]
    # PyTorch's weight decay adds decay * w to the gradient, the gradient of decay * |w|^2 / 2.
    optimizer = torch.optim.SGD(kernels, settings["learning_rate"], momentum=0.9, weight_decay=decay)

    def same(features, kernel, stride):
        # TensorFlow's "same" for stride 2 and an even size pads at the end only.
        if stride == 1:
            return functional.conv2d(features, kernel, padding=1)
        return functional.conv2d(functional.pad(features, (0, 1, 0, 1)), kernel, stride=2)

    def forward():
        features = same(images, kernels[0], 1)
        for number in range((len(kernels) - 1) // 2):
            first, second = kernels[1 + 2 * number : 3 + 2 * number]
            stride = 2 if number and number % settings["blocks"] == 0 else 1
            branch = same(functional.relu(same(features, first, stride)), second, 1)
            skip = functional.avg_pool2d(features, 2) if stride == 2 else features
            extra = second.shape[0] - skip.shape[1]
            if extra:
                skip = functional.pad(skip, (0, 0, 0, 0, extra // 2, extra - extra // 2))
            features = skip.float() + branch.float()
        return features.mean((2, 3)) @ head

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=settings["precision"] == "bfloat16"):
            logits = forward()
        loss = functional.cross_entropy(logits.float(), labels)
        loss.backward()
        with torch.no_grad():
            total = float(loss) + decay / 2 * sum(float((kernel**2).sum()) for kernel in kernels)
        optimizer.step()
        return total

    return step


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(available_cores())
    settings = json.loads((folder / "settings.json").read_text())
    with np.load(folder / "inputs.npz") as arrays:
        weights = [arrays[f"weight{number}"] for number in range(settings["weights"])]
        images, labels = arrays["images"], arrays["labels"]
    steps = {
        memory_format: make_step(settings, images, labels, weights, memory_format)
        for memory_format in ("contiguous_format", "channels_last")
    }

    def losses(memory_format, count):
        return [steps[memory_format]() for _ in range(count)]

    def measure(memory_format, count):
        return seconds(lambda: losses(memory_format, count)) / count

    serve({"losses": losses, "seconds": measure})


if __name__ == "__main__":
    main()
