"""Training data of several kinds for runs that are killed and started again. `test_sources` tests the other kinds.

Each source returns arguments of `fit` for the same small classification problem, in random order, with batches of 12.
Optional libraries are imported on use, so that the names can be listed without them.
"""

import importlib.util
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

# Batches divide among two and three workers.
BATCH, STEPS = 12, 8
SHAPE = (4, 4, 1)


def problem(examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images (examples, 4, 4, 1) and their classes, 0 or 1."""
    x = np.random.default_rng(0).normal(size=(examples, *SHAPE)).astype("float32")
    return x, (x.sum((1, 2, 3)) > 0).astype("int32")


def aligned(array):
    """Return a copy of an array at an address at which TensorFlow does not copy it, as may be that of any array."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copied = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[:] = array
    return copied


def _function_batches(x, y, folder):
    from idmatters_tf.callbacks import FunctionBatches

    def batch(step):
        rows = np.random.default_rng((1, step)).integers(0, len(x), BATCH)
        return x[rows], y[rows]

    return {"x": FunctionBatches(batch, STEPS)}


def _changing_py_dataset(x, y, folder):
    import keras

    class Rows(keras.utils.PyDataset):
        def __init__(self):
            super().__init__(workers=2)
            self.rng = np.random.default_rng(1)
            self.on_epoch_end()

        def __len__(self):
            return STEPS

        def __getitem__(self, index):
            rows = self.order[index * BATCH : (index + 1) * BATCH]
            return x[rows], y[rows]

        def on_epoch_end(self):
            self.order = self.rng.permutation(len(x))

    return {"x": Rows(), "shuffle": False}


def _data_loader(x, y, folder):
    import grain

    class Rows:
        def __len__(self):
            return len(x)

        def __getitem__(self, row):
            return x[row], y[row]

    sampler = grain.samplers.IndexSampler(len(x), shuffle=True, seed=1)
    loader = grain.DataLoader(data_source=Rows(), sampler=sampler, operations=[grain.transforms.Batch(BATCH)])
    return {"x": loader, "steps_per_epoch": STEPS}


def _tf_data(x, y, folder):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(32, seed=1, reshuffle_each_iteration=True)
    return {"x": data.batch(BATCH).prefetch(tf.data.AUTOTUNE)}


def _image_folder(x, y, folder):
    import keras
    from PIL import Image

    images = folder / "images"
    if not images.exists():
        # The folder is renamed when it is complete, since the process may be killed.
        new = folder / f"images-{os.getpid()}"
        for number, (image, label) in enumerate(zip(x, y, strict=True)):
            (new / str(label)).mkdir(parents=True, exist_ok=True)
            pixels = np.clip(128 + 64 * image[..., 0], 0, 255).astype("uint8")
            Image.fromarray(pixels).save(new / str(label) / f"{number:03d}.png")
        new.rename(images)
    return {
        "x": keras.utils.image_dataset_from_directory(
            images, image_size=SHAPE[:2], color_mode="grayscale", batch_size=BATCH, seed=1, verbose=False
        )
    }


def _tfds(x, y, folder):
    import tensorflow as tf
    import tensorflow_datasets as tfds

    class Small(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {"x": tfds.features.Tensor(shape=SHAPE, dtype=tf.float32), "y": tf.int32}
            return self.dataset_info_from_configs(
                features=tfds.features.FeaturesDict(features), supervised_keys=("x", "y")
            )

        def _split_generators(self, manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number in range(len(x)):
                yield number, {"x": x[number], "y": y[number]}

    tfds.disable_progress_bar()
    builder = Small(data_dir=folder / "prepared")
    builder.download_and_prepare()
    data = builder.as_dataset(split="train", as_supervised=True)
    return {"x": data.shuffle(32, seed=1).batch(BATCH).prefetch(tf.data.AUTOTUNE)}


# By name, a function (x, y, folder) that returns the arguments of `fit`, and modules to be imported before the forks.
SOURCES: dict[str, tuple[Callable[[np.ndarray, np.ndarray, pathlib.Path], dict[str, Any]], tuple[str, ...]]] = {
    "arrays, `shuffle=True`": (lambda x, y, folder: {"x": x, "y": y, "batch_size": BATCH, "shuffle": True}, ()),
    "`tf.data`, shuffled anew each epoch, prefetched": (_tf_data, ("tensorflow",)),
    "`image_dataset_from_directory`": (_image_folder, ("tensorflow", "PIL.Image")),
    "TFDS": (_tfds, ("tensorflow", "tensorflow_datasets")),
    "`PyDataset` with `on_epoch_end`": (_changing_py_dataset, ()),
    "Grain `DataLoader`": (_data_loader, ("grain",)),
    "`FunctionBatches`": (_function_batches, ()),
}


def installed_sources() -> list[str]:
    """Return the names of the sources whose packages are installed."""
    return [
        name
        for name, (_, modules) in SOURCES.items()
        if all(importlib.util.find_spec(module.partition(".")[0]) for module in modules)
    ]
