"""Fits with losses, masks, weights and metrics that Keras normalizes on each replica, see `replicated_fits`."""

import keras
import numpy as np
from keras import losses, metrics, ops

from tests.support.fits import build, case

RANDOM = np.random.default_rng(3)
# Batches of 12, 12 and 5: parts of 2, 2 and 1 examples, or of 3 and 2.
X = RANDOM.normal(size=(29, 6)).astype("float32")
Y = np.tanh(X @ RANDOM.normal(size=(6, 2))).astype("float32")
POSITIVE = (Y > 0).astype("float32")
WEIGHTS = RANDOM.uniform(0.2, 3, 29).astype("float32")
LABELS = np.arange(29) % 3
ONE_HOT = np.eye(3, dtype="float32")[LABELS]
# Sequences with 1 to 7 tokens.
TOKENS = np.where(np.arange(7) < RANDOM.integers(1, 8, (29, 1)), RANDOM.integers(1, 9, (29, 7)), 0)
TAGS = RANDOM.integers(0, 3, (29, 7))
IGNORED = np.where(RANDOM.uniform(size=(29, 7)) < RANDOM.uniform(size=(29, 1)), -1, TAGS)
TOKEN_WEIGHTS = RANDOM.uniform(0.2, 3, (29, 7)).astype("float32")


def model(*layers, units=2, activation=None, regularizer="l2", **compiled):
    hidden = keras.layers.Dense(5, "tanh", kernel_regularizer=regularizer)
    compiled = {"optimizer": keras.optimizers.SGD(0.2, momentum=0.5), **compiled}
    return build((6,), hidden, *layers, keras.layers.Dense(units, activation), **compiled)


def tagger(mask=True, how=None, **compiled):
    """Return a model of sequences whose outputs have a mask."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **how or {})
    layers = keras.layers.Embedding(9, 4, mask_zero=mask), keras.layers.Dense(3)
    return build((7,), *layers, **{"optimizer": keras.optimizers.SGD(0.5), "loss": loss, **compiled})


def all_of_tokens():
    """Return a model of sequences with all that a mask concerns, and an optimizer of two steps in each update."""
    options = {"gradient_accumulation_steps": 2, "global_clipnorm": 0.1, "use_ema": True, "weight_decay": 0.01}
    layers = keras.layers.Embedding(9, 4, mask_zero=True), keras.layers.BatchNormalization(synchronized=True)
    return build(
        (7,),
        *layers,
        keras.layers.Dense(3, kernel_regularizer="l2"),
        optimizer=keras.optimizers.SGD(0.5, 0.5, **options),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1),
        weighted_metrics=["accuracy"],
    )


def loss(make, y=Y, weights=None, **arguments):
    return case(make, X, y, True, sample_weight=weights, **arguments)


def tokens(y=TAGS, weights=None, **options):
    return case(lambda: tagger(**options), TOKENS, y, True, sample_weight=weights)


class Called(keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return ops.mean(ops.square(y_true - y_pred))


def mean_of_all(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred))


def contrastive(y_true, y_pred):
    """Couple examples, with a value for each."""
    # With a sparse gradient.
    y_pred = ops.take(y_pred, ops.arange(ops.shape(y_pred)[0]), 0)
    scores = ops.matmul(y_pred, ops.transpose(y_true))
    return -ops.diagonal(ops.log_softmax(scores, axis=-1))


def masked_mean(y_true, y_pred):
    values = keras.losses.sparse_categorical_crossentropy(ops.maximum(y_true, 0), y_pred, from_logits=True)
    valid = ops.cast(y_true >= 0, values.dtype)
    return ops.sum(values * valid) / ops.sum(valid)


def root(y_true, y_pred):
    return ops.sqrt(ops.mean(ops.square(y_true - y_pred)))


class Measuring(keras.layers.Layer):
    """Layer with a metric of the examples."""

    def __init__(self):
        super().__init__()
        self.sizes = keras.metrics.Mean(name="size")

    def call(self, x):
        self.sizes.update_state(ops.mean(ops.square(x), -1))
        return x


class Spread(keras.metrics.Metric):
    """Metric of the user, with a mean, a maximum and a sum of a metric of Keras."""

    def __init__(self):
        super().__init__(name="spread")
        self.total = self.add_weight(initializer="zeros")
        self.count = self.add_weight(initializer="zeros")
        self.largest = self.add_weight(initializer="zeros")
        self.sum = keras.metrics.Sum()

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.std(y_pred))
        self.count.assign_add(1.0)
        self.largest.assign(ops.maximum(self.largest, ops.max(y_pred)))
        self.sum.update_state(y_pred)

    def result(self):
        return self.total / self.count + self.largest + self.sum.result()


class Averaged(keras.metrics.Metric):
    """Metric with a variable of an aggregation, which `result` returns."""

    def __init__(self, aggregation):
        super().__init__(name=aggregation)
        self.last = self.add_variable(shape=(), initializer="zeros", aggregation=aggregation)

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.last.assign(0.5 * self.last + ops.max(y_pred))

    def result(self):
        return self.last


LOSS_CASES = {
    "loss: mean of all": loss(lambda: model(loss=mean_of_all)),
    "loss: Dice": loss(lambda: model(activation="sigmoid", loss=losses.Dice()), POSITIVE),
    "loss: Dice of each example": loss(lambda: model(activation="sigmoid", loss=losses.Dice(axis=(1,))), POSITIVE),
    "loss: Circle": loss(lambda: model(units=4, activation=ops.normalize, loss=losses.Circle(gamma=2.0)), LABELS % 2),
    "loss: axis 0": loss(lambda: model(units=3, loss=losses.CategoricalCrossentropy(True, axis=0)), ONE_HOT),
    "loss: outputs of rank 1": loss(lambda: model(keras.layers.Flatten(), units=1), Y[:, :1]),
    "loss: label smoothing, weights": loss(
        lambda: model(units=3, loss=losses.CategoricalCrossentropy(True, label_smoothing=0.1)), ONE_HOT, WEIGHTS
    ),
    "loss: sum": loss(lambda: model(loss=losses.MeanSquaredError("sum")), weights=WEIGHTS / 20),
    "loss: none": loss(
        lambda: model(loss=losses.MeanSquaredError(None), regularizer=None, optimizer=keras.optimizers.SGD(0.01)),
        weights=WEIGHTS,
    ),
    "loss: mean of weights": loss(
        lambda: model(loss=losses.MeanSquaredError("mean_with_sample_weight"), weighted_metrics=["mae"]),
        weights=WEIGHTS,
    ),
    "tokens: mask": tokens(metrics=["accuracy"]),
    "tokens: mask, sum": tokens(how={"reduction": "sum"}),
    "tokens: mask, mean of weights": tokens(how={"reduction": "mean_with_sample_weight"}, weights=TOKEN_WEIGHTS),
    "tokens: all": case(all_of_tokens, TOKENS, IGNORED, True, sample_weight=TOKEN_WEIGHTS, epochs=2),
    "tokens: own masked mean": tokens(mask=False, y=IGNORED, loss=masked_mean),
    "tokens: mask, own loss": tokens(loss=lambda y, p: ops.mean(ops.square(p), -1) + ops.mean(p[..., 0])),
    "metrics: that couple, loss with __call__": loss(
        lambda: model(
            Measuring(),
            activation="sigmoid",
            loss=Called(),
            metrics=[
                Spread(),
                metrics.MeanMetricWrapper(losses.dice, name="dice"),
                metrics.CosineSimilarity(axis=0, name="cosine"),
                Averaged("mean"),
            ],
        ),
        POSITIVE,
    ),
    "metrics: that couple": loss(
        lambda: model(
            activation="sigmoid",
            metrics=[
                root,
                metrics.R2Score(name="r"),
                metrics.MeanMetricWrapper(losses.Tversky(), name="tversky"),
                Averaged("only_first_replica"),
            ],
        ),
        POSITIVE,
    ),
    "metrics: labels of rank 1": loss(
        lambda: model(units=1, metrics=[metrics.CosineSimilarity(name="cosine"), "mae", metrics.AUC(name="auc")]),
        Y[:, 0],
    ),
    "metrics: of Keras": loss(
        lambda: model(
            units=1,
            loss=losses.BinaryCrossentropy(True),
            metrics=[metrics.AUC(20, from_logits=True, name="auc"), "accuracy", "mae"],
            weighted_metrics=[metrics.Precision(name="p"), metrics.F1Score(threshold=0.5, name="f")],
        ),
        POSITIVE[:, :1],
        WEIGHTS,
    ),
}
