"""Synthetic image files for tests."""

import io

import numpy as np
from PIL import Image


def encoded(rng, rows=40, cols=56, kind="JPEG", mode="RGB"):
    """Return a smooth random image, which JPEG preserves well, as the bytes of a file."""
    coarse = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((cols, rows), Image.BICUBIC).convert(mode)
    if mode == "RGBA":
        image.putalpha(200)
    stream = io.BytesIO()
    image.save(stream, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return stream.getvalue()


def make_tree(root, classes=3, each=4, splits=("train", "val"), seed=0):
    """Write images of various sizes to root/SPLIT/n0CLASS/CLASS_NUMBER.JPEG. Return the root."""
    rng = np.random.default_rng(seed)
    for split in splits:
        for label in range(classes):
            folder = root / split / f"n{label:02d}"
            folder.mkdir(parents=True)
            for number in range(each):
                size = rng.integers(30, 70, 2)
                (folder / f"{label}_{number}.JPEG").write_bytes(encoded(rng, *map(int, size)))
    return root
