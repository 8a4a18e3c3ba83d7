"""Folders of labeled images and ImageNet, decoded during training or once."""

import dataclasses
from typing import TYPE_CHECKING, Literal

from trainers.cli.arguments import UsageError
from trainers.cli.settings import setting
from trainers.cli.startup import import_tensorflow, print_message
from trainers.datasets.memory import InMemory, InMemorySource
from trainers.datasets.source import EXAMPLES_AT_ONCE, DataOptions, Source

if TYPE_CHECKING:
    from idmatters_tf.data.imagenet import StreamedImageData
    from idmatters_tf.data.images import ImageData
    from idmatters_tf.data.streams import StreamEvaluationBatches, StreamTrainBatches


@dataclasses.dataclass(frozen=True)
class Tree(DataOptions):
    """Options of all folders of images."""

    val: str = setting("val", help="folder in --data-dir with the validation images", metavar="DIR")
    val_fraction: float | None = setting(
        None,
        help="hold out this share of each class's training images for validation if there is no validation folder; "
        "with --val train, also if there is one, to choose settings without it",
        above=0,
        below=1,
        common=True,
    )
    size: int = setting(32, help="rows and columns of the images", at_least=16, at_most=4096, common=True)
    skip_broken: bool = setting(
        False, help="decode every image once at the start and skip those that cannot be decoded"
    )

    def __post_init__(self) -> None:
        if self.val_fraction is not None and self.held_out is not None:
            raise UsageError("--val-fraction and --held-out exclude each other. Pass one of them.")

    @property
    def test_split(self) -> str:
        """Name of the part of the data set that contains the test images."""
        is_training = self.held_out is not None or self.val_fraction is not None or self.val == "train"
        return "train" if is_training else "validation"

    def list_images(self) -> "StreamedImageData":
        """Return the selected images, listed but not read."""
        from idmatters_tf.data import imagenet

        location = imagenet.locate(self.data_dir)
        if location is not None and location.kind in ("tfds", "tars"):
            import_tensorflow()
        data = imagenet.load(self.data_dir, self.val, self.size, self.val_fraction, self.held_out is not None)
        for name in data.class_names:
            if name.encode(errors="ignore").decode() != name:
                raise UsageError(f"names of class folders must be UTF-8. Received: {name!a}. Rename the folder.")
        if self.skip_broken:
            data = _without_broken(data)
        data = data.first(self.train_images, None if self.held_out else self.test_images)
        if self.held_out is not None:
            data = data.hold_out(self.held_out).first(test=self.test_images)
        return data


@dataclasses.dataclass(frozen=True)
class Folder(Tree):
    """Options of `--dataset folder`."""

    augment: Literal["paper", "standard", "none"] = setting("paper", help="see the in-memory data sets")
    smallest_crop: float = setting(
        0.08, help="minimum share of an image's area in a random crop, with --augment standard", above=0, at_most=1
    )

    def source(self, batch_size: int, seed: int) -> "StreamedSource":
        """Load the data, see `DataOptions.source`."""
        return StreamedSource(self, self.list_images(), batch_size, seed)


@dataclasses.dataclass(frozen=True)
class FolderInMemory(Tree, InMemory):
    """Options of `--dataset folder-in-memory`."""

    def load(self) -> "ImageData":
        """Return the decoded images."""
        data = self.list_images()
        import_tensorflow()
        from idmatters_tf.data.streams import decode_all

        return decode_all(data)

    def source(self, batch_size: int, seed: int) -> InMemorySource:
        """Load the data, see `DataOptions.source`."""
        return InMemorySource(self, self.load(), batch_size, seed)


class StreamedSource(Source):
    """Images that are read and decoded during training."""

    options: Folder
    data: "StreamedImageData"

    @property
    def training_images(self) -> int:
        """Number of training images."""
        return len(self.data.train)

    @property
    def test_images(self) -> int:
        """Number of test images."""
        return len(self.data.test)

    def summary(self) -> str:
        """Return a description of the size of the data, with the numbers of skipped files."""
        data = self.data
        skipped = f", {data.skipped:,} broken image{'s' * (data.skipped != 1)} skipped" if data.skipped else ""
        if data.ignored:
            named = ", ".join(data.ignored[:3]) + (", ..." if len(data.ignored) > 3 else "")
            skipped += f", not read as images: {len(data.ignored):,} ({named})"
        return f"{len(data.train):,} + {len(data.test):,} images of {len(data.class_names):,} classes{skipped}"

    def train_batches(self) -> "StreamTrainBatches":
        """Return the training batches."""
        from idmatters_tf.data.streams import StreamTrainBatches

        options = self.options
        return StreamTrainBatches(
            self.data.train, self.batch_size, self.seed, options.augment, options.size, options.smallest_crop
        )

    def test_batches(self) -> "StreamEvaluationBatches":
        """Return the batches of test images."""
        from idmatters_tf.data.streams import StreamEvaluationBatches

        return StreamEvaluationBatches(self.data.test, self.batch_size, self.options.augment, self.options.size)

    def examples(self, count: int) -> "StreamEvaluationBatches":
        """Return the first `count` training images in the order of training, without augmentation."""
        import tensorflow as tf

        from idmatters_tf.data.streams import StreamEvaluationBatches

        images = self.data.train
        # Folders are sorted by class, so that their first images have one class.
        chosen = self.train_batches().indices(tf.range(min(count, len(images)), dtype=tf.int64)).numpy().tolist()
        examples = images.without(set(range(len(images))).difference(chosen))
        size = min(EXAMPLES_AT_ONCE, len(examples))
        return StreamEvaluationBatches(examples, size, self.options.augment, self.options.size)

    def explain(self, error: Exception, step: int) -> str:
        """Return an error message with the first broken image near a step, and "" for other errors."""
        import tensorflow as tf

        errors = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError)
        if not isinstance(error, (*errors, tf.errors.DataLossError)):
            return ""
        from idmatters_tf.data.streams import find_broken

        # The pipeline reads up to 8 batches ahead of the failed step.
        positions = tf.range(step * self.batch_size, (step + 8) * self.batch_size, dtype=tf.int64)
        ahead = self.train_batches().indices(positions).numpy().tolist()
        for images, places in ((self.data.train, ahead), (self.data.test, None)):
            bad = find_broken(images, places)
            if bad:
                return (
                    f"{images.describe(bad[0])} cannot be read as an image. Replace it, or skip all broken images with "
                    f"--skip-broken and another --out."
                )
        return ""


def _without_broken(data: "StreamedImageData") -> "StreamedImageData":
    import_tensorflow()
    from idmatters_tf._progress import Progress
    from idmatters_tf.data.streams import find_broken

    def find(images):
        with Progress(len(images) // 100, "looking for broken images", unit="hundreds", delay=0) as progress:
            bad = find_broken(images, advance=progress.advance)
        for place in bad[:10]:
            print_message(f"skipped: {images.describe(place)}")
        return bad

    return data.without_broken(find)
