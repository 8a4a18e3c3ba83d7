"""Text of a model card: README.md with a YAML header for model hubs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainers.reporting.markdown import as_words, fence, inline, table

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

# Title and name on the hub of each data set.
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
# Maximum number of classes that are listed by name.
_FEW = 20
_NAMED = 'names = [model.get_layer("classes").class_names[label] for label in logits.numpy().argmax(axis=1)]\n'


def metadata(name: str, license: str, dataset: str, accuracies: Mapping[str, float]) -> "ModelCardData":
    """Return the metadata of a model card, the YAML header of README.md.

    Args:
        name: name of the model.
        license: license identifier such as apache-2.0.
        dataset: a key of `DATA_SETS`, or any other name.
        accuracies: accuracies in [0, 1] by the name of the metric.
    """
    from huggingface_hub import EvalResult, ModelCardData

    title, on_hub = DATA_SETS.get(dataset, (dataset, None))
    results = [
        EvalResult(
            task_type="image-classification",
            task_name="Image classification",
            dataset_type=on_hub or dataset,
            dataset_name=title,
            dataset_split="test",
            metric_type="accuracy",
            metric_name=metric,
            metric_value=round(value, 6),
        )
        for metric, value in accuracies.items()
    ]
    return ModelCardData(
        license=license,
        library_name="keras",
        pipeline_tag="image-classification",
        tags=["keras", "image-classification", "residual-networks"],
        datasets=[on_hub] if on_hub else None,
        metrics=["accuracy"],
        model_name=name,
        eval_results=results,
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
    """Return the content of README.md: the YAML header and the text.

    Args:
        name: name of the model.
        license: license identifier.
        repository: USER/NAME on the hub.
        facts: facts about the run: "dataset", "image_shape", "classes", "class_names" (of the outputs; may be empty),
            "parameters", "steps", "minutes", "seed", "versions", "held_out" (number of held-out training images that
            were the test images, or None), "rounding", "digest" (of the checkpoint), "measured" (True if `errors`
            contains the error of the published weights).
        errors: errors in [0, 1], that of the run first, then that of the published weights if it was measured.
        command: command line of the training run.
        settings: settings that differ from the program's defaults.

    Raises:
        ValueError: huggingface_hub rejects the card.
    """
    from huggingface_hub import ModelCard

    title, _ = DATA_SETS.get(facts["dataset"], (facts["dataset"], None))
    rows, cols, channels = facts["image_shape"]
    class_names = facts["class_names"]
    listed = f": {', '.join(map(inline, class_names))}" if 0 < len(class_names) <= _FEW else ""
    named = _NAMED if class_names else ""
    images = "test images" if facts["held_out"] is None else f"the last {facts['held_out']:,} training images, held out"
    rounding = {"none": "float32, not rounded", "float16": "rounded to float16", "bfloat16": "rounded to bfloat16"}
    rounding = rounding[facts["rounding"]]
    caution = (
        ""
        if facts["measured"] or facts["rounding"] == "none"
        else "The error was measured before rounding. The error of the rounded weights has not been measured.\n\n"
    )
    measured = "top-1 accuracy" if facts["held_out"] is None else "accuracy on held-out training images"
    weights = ("final weights of the run", f"weights in this folder ({rounding}), evaluated in float32")
    error_table = table(
        ("weights", "error"),
        [(which, f"{100 * error:.2f} %") for which, error in zip(weights, errors.values(), strict=False)],
    )
    changed = table(("setting", "value"), [(f"`{key}`", inline(as_words(value))) for key, value in settings.items()])
    changed = f"\nSettings that differ from the program's defaults:\n\n{changed}" if settings else ""
    papers = " and ".join(f"[{paper}]({link})" for paper, link in PAPERS.items())
    headline = list(errors.values())[-1]
    header = metadata(name, license, facts["dataset"], {measured: 1 - headline}).to_yaml()
    text = f"""
# {name}

A residual network for {title} with {facts["parameters"]:,} trainable weights, trained with idmatters_tf, which
implements the networks and experiments of {papers}.

- Input: raw images, uint8 of shape (n, {rows}, {cols}, {channels}). Preprocessing is part of the model.
- Output: logits of {facts["classes"]:,} classes{listed}

## Use

```python
import idmatters_tf.layers  # registers the layers; Keras' safe mode stays on
import keras

model = keras.saving.load_model("hf://{repository}")  # or the path of this folder
logits = model(images)  # images: uint8, (n, {rows}, {cols}, {channels})
{named}```

Compile the model before `evaluate`:

```python
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(loss=loss, metrics=["accuracy"])
model.evaluate(images, labels)  # labels: integers, (n,)
```

## Error

Top-1 error on {images}:

{error_table}
{caution}The weights in `model.weights.h5` are {rounding}.

## Training

{facts["steps"]:,} steps in {facts["minutes"]:.1f} minutes, seed {facts["seed"]}:

{fence(command)}
{changed}
`training.json` contains all settings, the checksum of the data and the versions
({_versions(facts["versions"])}).
SHA-256 of the checkpoint's tensors: `{facts["digest"]}`.

![Convergence](convergence.png)

## Limitations

The model classifies every image as one of its {facts["classes"]:,} classes, often with a large logit,
including images of other subjects or sizes. The error is that of one run; another seed gives another error.

## Publish

This folder is a complete repository for the Hugging Face hub. To upload it, run in the folder:

```
pip install huggingface_hub
hf auth login
hf upload {repository} . .
```
"""
    # The constructor validates the metadata.
    return str(ModelCard(f"---\n{header}\n---\n{text}"))


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(inline(f"{package} {version}") for package, version in versions.items() if package != "machine")
