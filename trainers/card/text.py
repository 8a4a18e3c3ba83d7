"""The text of a model card: README.md with the header that model hubs read."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainers.reporting.markdown import fenced, inline, yaml_string

# Names of the data sets: in words, and on the hub.
DATA_SETS: Mapping[str, tuple[str, str | None]] = {
    "cifar10": ("CIFAR-10", "uoft-cs/cifar10"),
    "cifar100": ("CIFAR-100", "uoft-cs/cifar100"),
    "folder": ("a folder of images", None),
    "folder-in-memory": ("a folder of images", None),
    "shapes": ("the generated images of idmatters_tf", None),
}
PAPERS = {
    "Identity Matters in Deep Learning": "https://arxiv.org/abs/1611.04231",
    "Demystifying ResNet": "https://arxiv.org/abs/1611.01186",
}
# So many classes are listed in the text.
_FEW = 20
_NAMED = 'names = [model.get_layer("classes").class_names[label] for label in logits.numpy().argmax(axis=1)]\n'


def header(name: str, license: str, dataset: str, accuracies: Mapping[str, float]) -> str:
    """The YAML between the two lines of dashes.

    Args:
        name: of the model.
        license: an identifier such as apache-2.0.
        dataset: a key of `DATA_SETS`, or any other name.
        accuracies: by metric, fractions.
    """
    title, on_hub = DATA_SETS.get(dataset, (dataset, None))
    metrics = "".join(
        f"    - type: accuracy\n      name: {yaml_string(metric)}\n      value: {round(value, 6)}\n"
        for metric, value in accuracies.items()
    )
    datasets = f"datasets:\n- {yaml_string(on_hub)}\n" if on_hub else ""
    return (
        f"---\nlicense: {yaml_string(license)}\nlibrary_name: keras\npipeline_tag: image-classification\n"
        f"tags:\n- keras\n- image-classification\n- residual-networks\n{datasets}metrics:\n- accuracy\n"
        f"model-index:\n- name: {yaml_string(name)}\n  results:\n"
        f"  - task:\n      type: image-classification\n      name: Image classification\n"
        f"    dataset:\n      type: {yaml_string(on_hub or dataset)}\n      name: {yaml_string(title)}\n"
        f"      split: test\n"
        f"    metrics:\n{metrics}---\n"
    )


def readme(
    name: str,
    license: str,
    repository: str,
    facts: Mapping[str, Any],
    errors: Mapping[str, float],
    command: str,
    settings: Mapping[str, Any],
) -> str:
    """The whole README.md.

    Args:
        name: of the model.
        license: an identifier.
        repository: USER/NAME on the hub.
        facts: what is known of the run: "dataset", "image_shape", "classes", "class_names" (of the outputs, or none),
            "parameters", "steps", "minutes", "seed", "versions", "held_out" (None, or how many training images it was
            tested on), "rounding", "digest" (of the checkpoint), "measured" (whether `errors` has the rounded weights'
            own).
        errors: by name, fractions, the run's own first.
        command: that trained it, as one types it.
        settings: those that differ from the program's defaults.
    """
    title, _ = DATA_SETS.get(facts["dataset"], (facts["dataset"], None))
    rows, cols, channels = facts["image_shape"]
    class_names = facts["class_names"]
    listed = f" ({', '.join(map(inline, class_names))})" if 0 < len(class_names) <= _FEW else ""
    named = _NAMED if class_names else ""
    images = "test images" if facts["held_out"] is None else f"the last {facts['held_out']:,} training images, held out"
    headline = list(errors.values())[-1]
    rounding = {"none": "float32, as trained", "float16": "rounded to float16", "bfloat16": "rounded to bfloat16"}
    caution = (
        ""
        if facts["measured"] or facts["rounding"] == "none"
        else "The error was measured before the weights were rounded, and not again after it.\n\n"
    )
    measured = "top-1 accuracy" if facts["held_out"] is None else "accuracy on held-out training images"
    table = "\n".join(f"| {what} | {100 * error:.2f} % |" for what, error in errors.items())
    changed = "\n".join(f"| `{key}` | {inline(_shown(value))} |" for key, value in settings.items())
    if changed:
        changed = f"\nSettings that differ from the program's defaults:\n\n| setting | value |\n|---|---|\n{changed}\n"
    papers = " and ".join(f"[{paper}]({link})" for paper, link in PAPERS.items())
    return f"""{header(name, license, facts["dataset"], {measured: 1 - headline})}
# {name}

A residual network for {title} with {facts["parameters"]:,} trainable weights, trained with idmatters_tf, which has
the networks and experiments of {papers}. The settings below say which network it is. It takes
raw images, uint8 of shape ({rows}, {cols}, {channels}), and returns the logits of {facts["classes"]:,} classes{listed};
the preprocessing is part of it.

## Use

```python
import idmatters_tf  # lets Keras find the layers; safe mode stays on
import keras

model = keras.saving.load_model("hf://{repository}")  # or the path of this folder
logits = model(images)  # images: uint8, (n, {rows}, {cols}, {channels})
{named}```

## Error

Top-1 error on {images}:

| weights | error |
|---|---|
{table}

{caution}The weights in `model.weights.h5` are {rounding[facts["rounding"]]}.

## Training

{facts["steps"]:,} steps in {facts["minutes"]:.1f} minutes, seed {facts["seed"]}:

{fenced(command)}
{changed}
`training.json` has every setting, the checksum of the data and the versions ({_versions(facts["versions"])}).
SHA-256 of the checkpoint's tensors: `{facts["digest"]}`.

![Convergence](convergence.png)

## Limits

It knows the classes and the image size that it was trained on, and nothing else; other images get one of these classes,
often with a large logit. One run with one seed: another seed gives another error.

## Publish it

The folder is a complete repository for the hub. In it,

```
pip install huggingface_hub
hf auth login
hf upload {repository} . .
```

uploads it; the program that wrote this folder uploads nothing.
"""


def _shown(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(inline(f"{package} {version}") for package, version in versions.items() if package != "machine")
