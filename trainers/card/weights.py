"""Weights rounded to fewer bits, and Keras' folder format with compressed weights.

A folder with config.json, metadata.json and model.weights.h5 is what `keras.saving.load_model` reads, from a path and
from `hf://USER/NAME` alike. Weights stay float32 there whatever they were rounded to, so that nothing has to be known
to load them; the bits that rounding has cleared, grouped by HDF5's shuffle filter, take next to no space.
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


def rounded(weights: Sequence[NDArray[Any]], rounding: Rounding) -> list[NDArray[Any]]:
    """Floating-point weights rounded to the nearest value of a type of 16 bits, as float32; others as they are.

    Args:
        weights: as `keras.Model.get_weights` returns them.
        rounding: "float16" (10 bits of mantissa, up to 65,504), "bfloat16" (7 bits, float32's range) or "none".

    Raises:
        RunError: a weight is beyond the range of float16.
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
    """Writes a model into an existing folder in Keras' folder format, its weights compressed without loss.

    Raises:
        RunError: the model that is loaded from there has other weights.
    """
    model.save(folder, zipped=False)
    with contextlib.suppress(FileNotFoundError):
        # For files of layers, which those of this package do not have.
        (folder / "assets").rmdir()
    _compress(folder / WEIGHTS)
    loaded: Any = keras.saving.load_model(folder)
    for before, after in zip(model.get_weights(), loaded.get_weights(), strict=True):
        if not np.array_equal(before, after):
            raise RunError(f"the weights in {folder / WEIGHTS} are not those of the model: a fault of this program.")


def _compress(path: pathlib.Path) -> None:
    plain = path.with_name(f"plain-{path.name}")
    path.rename(plain)
    with h5py.File(plain) as source, h5py.File(path, "w") as target:
        _copy(source, target)
    plain.unlink()


def _copy(source: Any, target: Any) -> None:
    """Copies a group of an HDF5 file with its attributes; arrays become compressed."""
    for name, value in source.attrs.items():
        target.attrs[name] = value
    for name, item in source.items():
        if isinstance(item, h5py.Group):
            _copy(item, target.create_group(name))
            continue
        # One chunk for each array: with HDF5's own, smaller ones the file is a tenth larger.
        filters: dict[str, Any] = {"chunks": item.shape, "shuffle": True, "compression": "gzip", "compression_opts": 9}
        filters = filters if item.size > 1 else {}
        copied = target.create_dataset(name, data=item[()], **filters)
        for key, value in item.attrs.items():
            copied.attrs[key] = value
