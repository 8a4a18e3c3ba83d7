"""Draw a sheet of the built-in images, one column per class.

    python examples/draw_shapes.py [--out FILE.png] [--seed N]

Takes seconds.
"""

import argparse
import pathlib

from matplotlib.figure import Figure

from idmatters_tf.data import shapes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=pathlib.Path, default="runs/shapes.png", help="file of the image (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the images (default: %(default)s)")
    options = parser.parse_args()

    rows = 4
    data = shapes.load(rows * len(shapes.CLASSES), 1, options.seed)
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    axes = figure.subplots(rows, data.classes)
    for number, (axis, image) in enumerate(zip(axes.flat, data.train_images, strict=True)):
        axis.imshow(image)
        axis.axis("off")
        if number < data.classes:
            axis.set_title(data.class_names[number], fontsize=9)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=80)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
