"""Influence of each block of a model: size and direction of its branch, and the loss without the block."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import keras
import numpy as np
from keras import ops
from numpy.typing import NDArray

from idmatters_tf import _keras_internals
from idmatters_tf._evaluation.batches import RepeatableBatches, check_data, length, to_tensors
from idmatters_tf._evaluation.losses import DataLoss, ModelLoss, check_single_batch
from idmatters_tf._keras_internals import CallFunction
from idmatters_tf._keras_types import Data, Loss, Structure, Tensor
from idmatters_tf._presentation.progress import Progress
from idmatters_tf._presentation.results import Drawing, Figure, Result, tabulate
from idmatters_tf.isometry.blocks import Block, checked_graph, find_operations, missing_blocks


@dataclasses.dataclass(frozen=True)
class BlockInfluence:
    """Influence of a block x -> y = x + f(x) on given data.

    Attributes:
        relative: ||f(x)|| / ||x||, Frobenius norms over all vectors.
        angle: mean angle between x and y in degrees.
        loss: loss of the model without the block, where x takes the place of y.
        loss_change: `loss` minus the loss of the whole model.
    """

    relative: float
    angle: float
    loss: float
    loss_change: float


@dataclasses.dataclass(frozen=True, repr=False)
class LayerInfluence(Result, Drawing):
    """Result of `layer_influence`. `plot(path)` draws it.

    Attributes:
        loss: loss of the whole model.
        blocks: dict from names of blocks to `BlockInfluence`, in the order of execution.
    """

    size: ClassVar = (9.0, 4.0)
    loss: float
    blocks: Mapping[str, BlockInfluence]

    def least(self, count: int) -> list[str]:
        """Return the names of the blocks whose removal increases the loss least, the least one first."""
        return sorted(self.blocks, key=lambda name: self.blocks[name].loss_change)[:count]

    def table(self) -> str:
        """Return a table with a row for each block."""
        rows = [(name, *dataclasses.astuple(block)) for name, block in self.blocks.items()]
        return tabulate(("block", "|f(x)|/|x|", "angle", "loss without", "change"), rows)

    def draw(self, figure: Figure) -> None:
        """Draw ||f(x)|| / ||x|| and the change of the loss by block."""
        panels = {"relative": "||f(x)|| / ||x||", "loss_change": "change of the loss without the block"}
        for axes, (name, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            axes.barh(range(len(self.blocks)), [getattr(block, name) for block in self.blocks.values()])
            axes.set_xlabel(label)
            axes.set_yticks(range(len(self.blocks)), self.blocks if name == "relative" else [""] * len(self.blocks))
            axes.invert_yaxis()
            axes.grid(alpha=0.3)


def layer_influence(
    model: keras.Model,
    loss: Loss | ModelLoss = None,
    data: Data | None = None,
    *,
    blocks: Sequence[str] | None = None,
    batch_size: int = 32,
    progress: bool = False,
) -> LayerInfluence:
    """Measure how much each residual block of a model changes its input, and the loss of the model without the block.

    Blocks are those of `find_blocks`, sums x + f(x) whose branch also depends on other tensors, and blocks of nested
    models that are called several times. A layer that is called several times is one block. In (x + f(x)) + g(x), each
    sum is one. Blocks that change the shape of their input have no influence. Sizes and angles take one pass through
    the data, and each block one more for the loss. Positions of sequences that Keras' mask or the padding mask of a
    KerasHub layer excludes do not count in sizes and angles. Losses are those of all data as one batch, as in
    `idmatters_tf.curvature.HessianOperator`. A compiled loss includes penalties on weights, also on those of the block.

    Source: Veit et al., *Residual Networks Behave Like Ensembles of Relatively Shallow Networks* (2016), for the loss
    without single blocks; Men et al., *ShortGPT* (2024, arXiv:2403.03853), and Gromov et al.,
    *The Unreasonable Ineffectiveness of the Deeper Layers* (2024, arXiv:2403.17887), for angles.

    Args:
        model: built functional or Sequential model, or a KerasHub model. It does not change.
        loss: loss as in `HessianOperator`, without penalties; None for the compiled loss of the model.
        data: batches as in `HessianOperator`: arrays (x, y) or (x, y, sample weights), or a `tf.data.Dataset` of
            batches. Inputs of KerasHub's tasks must be preprocessed, as by `task.preprocessor(texts)`.
        blocks: names of layers with the shape of their first input, as in `find_blocks`, in place of the blocks above.
        batch_size: batch size for arrays.
        progress: True to show a progress bar on standard error.

    Returns:
        `LayerInfluence`. For images and vectors an angle is that between whole examples, for sequences (rank 3) that
        between the vectors of each position.

    Raises:
        ValueError: if the model has no blocks, if there is neither a compiled nor a given loss, if Keras cannot compute
            the loss, or if a loss that couples the examples of a batch receives several batches.
    """
    check_data(loss, data)
    graph = checked_graph(model)
    found = find_operations(model, graph, blocks)
    if not found:
        raise ValueError(missing_blocks(model, graph, "Name them as blocks=[layer, ...]."))
    data_loss = DataLoss(model, loss)
    batches = RepeatableBatches(data, batch_size)
    compute_loss = functools.partial(
        _data_loss, model, batches, data_loss, has_penalties=loss is None and not data_loss.is_compute_loss
    )
    with Progress(1 + len(found), "influence", progress, unit="passes") as bar:
        with record_branches(model, found) as sizes:
            whole = compute_loss()
        if not sizes:
            raise ValueError(f"Every block of {model.name!r} changes the shape of its input. Received: {list(found)}")
        bar.advance(1)
        results: dict[str, BlockInfluence] = {}
        for name, size in sizes.items():
            skip = found[name].operation, functools.partial(_skip, found[name].index)
            with _keras_internals.intercepted([skip, *_keras_internals.attention_handlers(model)]):
                without = compute_loss()
            results[name] = BlockInfluence(size.relative, size.angle, without, without - whole)
            bar.advance(1)
    return LayerInfluence(whole, results)


def _skip(index: int, call: CallFunction, /, *args: object, **kwargs: object) -> Tensor:
    x = _argument(index, call, args, kwargs)
    # As in a model without the block, whose attention has removed it.
    _keras_internals.set_mask(x, _keras_internals.kept_mask(x))
    return x


def _argument(index: int, call: CallFunction, args: Sequence[object], kwargs: Mapping[str, object]) -> Tensor:
    """Return one of the arguments of an operation, counted in the order of its signature."""
    return keras.tree.flatten(list(_keras_internals.call_arguments(call, args, kwargs).values()))[index]


@dataclasses.dataclass
class BranchSize:
    """Sums over the inputs x and outputs y of a block: of ||y - x||^2, ||x||^2, angles and vectors."""

    changed: float = 0.0
    total: float = 0.0
    angles: float = 0.0
    count: float = 0.0

    @property
    def relative(self) -> float:
        """||y - x|| / ||x||."""
        return float(np.sqrt(self.changed / self.total)) if self.total else float(np.sqrt(self.changed))

    @property
    def angle(self) -> float:
        """Mean angle between x and y in degrees."""
        return float(np.degrees(self.angles / self.count)) if self.count else 0.0

    def add(self, x: NDArray[np.float64], y: NDArray[np.float64], mask: NDArray[np.bool_] | None) -> None:
        """Add the inputs and outputs of a batch."""
        vectors = [part if part.ndim == 3 else part.reshape(len(part), -1) for part in (x, y)]
        chosen = np.ones(vectors[0].shape[:-1], bool) if mask is None or vectors[0].ndim != 3 else mask
        x, y = (part[chosen] for part in vectors)
        norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
        cosines = np.sum(x * y, axis=-1) / np.where(norms == 0, 1, norms)
        self.changed += float(np.sum((y - x) ** 2))
        self.total += float(np.sum(x**2))
        # Equal vectors have the angle 0, also where rounding gives a cosine below 1, and zeros have none.
        self.angles += float(np.sum(np.where((x == y).all(axis=-1), 0, np.arccos(np.clip(cosines, -1, 1)))))
        self.count += float(np.sum(chosen))


@contextlib.contextmanager
def record_branches(model: keras.Model, blocks: Mapping[str, Block]) -> Iterator[dict[str, BranchSize]]:
    """Record the sizes of the branches of blocks, see `find_operations`, while a model is called eagerly inside.

    Blocks that have changed the shape are left out when the context ends.
    """
    sizes = {name: BranchSize() for name in blocks}
    unfit: set[str] = set()

    def record(name: str, index: int, call: CallFunction, /, *args: object, **kwargs: object) -> Structure:
        x = _argument(index, call, args, kwargs)
        # Before the call, because it may contain attention.
        mask = _mask(x, blocks[name].operation, _keras_internals.call_arguments(call, args, kwargs))
        outputs = call(*args, **kwargs)
        y, *more = keras.tree.flatten(outputs)
        if more or tuple(x.shape) != tuple(y.shape):
            unfit.add(name)
        else:
            values = [np.asarray(ops.convert_to_numpy(part)).astype(np.float64) for part in (x, y)]
            sizes[name].add(values[0], values[1], mask)
        return outputs

    handlers = [(block.operation, functools.partial(record, name, block.index)) for name, block in blocks.items()]
    with _keras_internals.intercepted([*handlers, *_keras_internals.attention_handlers(model)]):
        yield sizes
    for name in unfit:
        del sizes[name]


def _mask(tensor: Tensor, operation: keras.Operation, arguments: Mapping[str, Structure]) -> NDArray[np.bool_] | None:
    """Return the mask of the positions of a sequence: the padding mask of a KerasHub layer, or the one of Keras."""
    names = ("padding_mask", "decoder_padding_mask") if _keras_internals.derives_from_hub(operation) else ()
    given = [arguments.get(name) for name in names]
    mask = next((mask for mask in given if mask is not None), _keras_internals.kept_mask(tensor))
    if mask is None or tuple(mask.shape) != tuple(tensor.shape[:2]):
        return None
    return np.asarray(ops.convert_to_numpy(mask)).astype(bool)


def _data_loss(model: keras.Model, batches: RepeatableBatches, loss: DataLoss, has_penalties: bool) -> float:
    """Return the loss of all data as one batch, computed eagerly."""
    examples = 0
    penalty = 0.0
    # Sums of each loss term, and their divisors.
    totals: NDArray[np.float64] = np.zeros(())
    for batch in batches:
        size = length(batch)
        inputs, *labels = keras.utils.unpack_x_y_sample_weight(batch)
        given = to_tensors(inputs), *labels
        with _keras_internals.substitute_values():
            outputs = loss.evaluate(model, given, False) if loss.takes_model else model(given[0], training=False)
            penalty += size * sum(_number(part) for part in model.losses) if has_penalties else 0.0
        if not loss.terms:
            loss.build(model, given, outputs)
            if loss.coupling:
                check_single_batch(loss.coupling, [length(batch) for batch in batches])
        totals = totals + np.array([_numbers(loss.totals(given, outputs)), _numbers(loss.divisors(given, outputs))])
        examples += size
    sums, divisors = totals
    return float(np.dot(loss.factors(divisors), sums)) + penalty / examples


def _numbers(tensors: Sequence[Tensor]) -> list[float]:
    return [_number(tensor) for tensor in tensors]


def _number(tensor: Tensor) -> float:
    return float(np.asarray(ops.convert_to_numpy(tensor)))
