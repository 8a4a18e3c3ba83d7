"""The text of a model card: README.md with the header that model hubs read."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainers.reporting.markdown import as_words, fenced, inline, table

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

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


def metadata(name: str, license: str, dataset: str, accuracies: Mapping[str, float]) -> "ModelCardData":
    """Return the metadata of a model card, which are the YAML header of README.md.

    Args:
        name: name of the model.
        license: identifier such as apache-2.0.
        dataset: a key of `DATA_SETS`, or any other name.
        accuracies: fractions by metric.
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
    """Return README.md: the header with the metadata, and the text.

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

    Raises:
        ValueError: the card is not valid according to huggingface_hub.
    """
    from huggingface_hub import ModelCard

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
    error_table = table(("weights", "error"), [(what, f"{100 * error:.2f} %") for what, error in errors.items()])
    changed = table(("setting", "value"), [(f"`{key}`", inline(as_words(value))) for key, value in settings.items()])
    changed = f"\nSettings that differ from the program's defaults:\n\n{changed}" if settings else ""
    papers = " and ".join(f"[{paper}]({link})" for paper, link in PAPERS.items())
    header = metadata(name, license, facts["dataset"], {measured: 1 - headline}).to_yaml()
    text = f"""
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

{error_table}
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
    # The constructor reads the metadata and raises for those that hubs do not accept.
    return str(ModelCard(f"---\n{header}\n---\n{text}"))


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(inline(f"{package} {version}") for package, version in versions.items() if package != "machine")
