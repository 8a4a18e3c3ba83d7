"""Draws a sheet of the built-in pictures, one column per class.

python examples/draw_shapes.py [--out shapes.png] [--seed N]
"""

import argparse

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from idmatters_tf.data import shapes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="shapes.png", help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    options = parser.parse_args()

    rows = 4
    data = shapes.load(rows * len(shapes.CLASSES), 1, options.seed)
    figure, axes = pyplot.subplots(rows, data.classes, figsize=(10, 4.4), layout="constrained")
    for number, (axis, picture) in enumerate(zip(axes.flat, data.train_images, strict=True)):
        axis.imshow(picture)
        axis.axis("off")
        if number < data.classes:
            axis.set_title(data.class_names[number], fontsize=9)
    figure.savefig(options.out, dpi=80)
    print(f"drawn: {options.out}")


if __name__ == "__main__":
    main()
