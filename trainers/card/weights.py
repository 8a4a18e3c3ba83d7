"""Rounding of weights to fewer bits, and Keras' folder format with compressed weights.

`keras.saving.load_model` reads a folder with config.json, metadata.json and model.weights.h5 from a path or from
`hf://USER/NAME`. Rounded weights are stored as float32, so they load like any others. HDF5's shuffle filter groups the
bits that rounding clears, and they compress to almost nothing.
"""

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import h5py
import keras
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from trainers.cli.arguments import RunError

Rounding = Literal["none", "float16", "bfloat16"]
_TYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
WEIGHTS = "model.weights.h5"


def round_weights(weights: Sequence[NDArray[Any]], rounding: Rounding) -> list[NDArray[Any]]:
    """Return the weights with float32 arrays rounded to the nearest value of a 16-bit type, still as float32.

    Args:
        weights: arrays from `keras.Model.get_weights`.
        rounding: "float16" (10 bits of mantissa, up to 65,504), "bfloat16" (7 bits, float32's range) or "none".

    Raises:
        RunError: a weight exceeds the range of float16.
    """
    if rounding == "none":
        return list(weights)
    found = []
    for weight in weights:
        if weight.dtype == np.float32:
            with np.errstate(over="ignore"):
                near = weight.astype(_TYPES[rounding]).astype(np.float32)
            if not np.array_equal(np.isfinite(near), np.isfinite(weight)):
                raise RunError(f"a weight of {np.abs(weight).max():.3g} is beyond {rounding}. Use --round bfloat16.")
            weight = near
        found.append(weight)
    return found


def save(model: keras.Model, folder: pathlib.Path) -> None:
    """Save a model into an existing folder in Keras' folder format, with losslessly compressed weights.

    Raises:
        RunError: the weights of the saved model differ.
    """
    model.save(folder, zipped=False)
    with contextlib.suppress(FileNotFoundError):
        # Keras creates it for files of layers. The layers of this package have none.
        (folder / "assets").rmdir()
    _compress(folder / WEIGHTS)
    loaded: Any = keras.saving.load_model(folder)
    for before, after in zip(model.get_weights(), loaded.get_weights(), strict=True):
        if not np.array_equal(before, after):
            raise RunError(f"the weights in {folder / WEIGHTS} differ from those of the model. Please report this bug.")


def _compress(path: pathlib.Path) -> None:
    plain = path.with_name(f"plain-{path.name}")
    path.rename(plain)
    with h5py.File(plain) as source, h5py.File(path, "w") as target:
        _copy(source, target)
    plain.unlink()


def _copy(source: Any, target: Any) -> None:
    """Copy a group of an HDF5 file with its attributes, and compress its arrays."""
    for name, value in source.attrs.items():
        target.attrs[name] = value
    for name, item in source.items():
        if isinstance(item, h5py.Group):
            _copy(item, target.create_group(name))
            continue
        # One chunk for each array: HDF5's default chunks make the file a tenth larger.
        filters: dict[str, Any] = {"chunks": item.shape, "shuffle": True, "compression": "gzip", "compression_opts": 9}
        filters = filters if item.size > 1 else {}
        copied = target.create_dataset(name, data=item[()], **filters)
        for key, value in item.attrs.items():
            copied.attrs[key] = value
