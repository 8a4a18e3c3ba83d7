"""Fits with losses, masks, weights and training steps that Keras normalizes on each replica, see `replicated_fits`."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportOptionalMemberAccess=false, reportOptionalOperand=false
import keras
import numpy as np
import tensorflow as tf
from keras import ops

from idmatters_tf.distribute import global_mean

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(48, 6)).astype("float32")
Y = np.tanh(X @ RANDOM.normal(size=(6, 2))).astype("float32")
WEIGHTS = RANDOM.uniform(0.2, 3, 48).astype("float32")
LABELS = RANDOM.integers(0, 3, 48)
ONE_HOT = np.eye(3, dtype="float32")[LABELS]
# Sequences with 1 to 7 tokens.
LENGTHS = RANDOM.integers(1, 8, 48)
TOKENS = np.where(np.arange(7) < LENGTHS[:, None], RANDOM.integers(1, 9, (48, 7)), 0)
TAGS = RANDOM.integers(0, 3, (48, 7))
IGNORED = np.where(RANDOM.uniform(size=(48, 7)) < RANDOM.uniform(size=48)[:, None], -1, TAGS)
TOKEN_WEIGHTS = RANDOM.uniform(0.2, 3, (48, 7)).astype("float32")


def model(*layers, units=2, activation=None, kind=keras.Sequential, regularizer="l2", **compiled):
    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(5, "tanh", kernel_regularizer=regularizer)]
    layers = [keras.Input((6,)), *hidden, *layers, keras.layers.Dense(units, activation)]
    made = kind(layers) if kind is keras.Sequential else subclass(kind, layers)
    compiled = {"optimizer": keras.optimizers.SGD(0.2, momentum=0.5), "loss": "mse", **compiled}
    made.compile(**compiled)
    return made


def subclass(kind, layers):
    output = layers[0]
    for layer in layers[1:]:
        output = layer(output)
    return kind(layers[0], output)


def tagger(mask=True, **compiled):
    """Return a model of sequences whose outputs have a mask."""
    keras.utils.set_random_seed(1)
    layers = [keras.Input((7,)), keras.layers.Embedding(9, 4, mask_zero=mask), keras.layers.Dense(3)]
    made = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **compiled.pop("how", {}))
    made.compile(**{"optimizer": keras.optimizers.SGD(0.5), "loss": loss, **compiled})
    return made


class Logs(keras.callbacks.Callback):
    """Callback that records the logs of batches."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def on_train_batch_end(self, batch, logs=None):
        for name, value in logs.items():
            self.found.setdefault(f"batch {name}", []).append(np.array(value))

    def on_test_batch_end(self, batch, logs=None):
        self.on_train_batch_end(batch, {f"evaluated {name}": value for name, value in logs.items()})


def fit(made, x=X, y=Y, **arguments):
    """Return the history of two epochs and of their batches, and an evaluation of 7 examples."""
    weights, logs = arguments.get("sample_weight"), Logs()
    arguments = {"batch_size": 12, "epochs": 2, "verbose": 0, "shuffle": False, "callbacks": [logs], **arguments}
    history = made.fit(x, y, **arguments).history
    few = None if weights is None else weights[:7]
    found = made.evaluate(x[:7], y[:7], 5, sample_weight=few, verbose=0, return_dict=True, callbacks=[logs])
    return {**history, **{f"evaluated {name}": [value] for name, value in found.items()}, **logs.found}


def loss(function, *layers, y=Y, units=2, activation=None, weights=None, **arguments):
    """Return a case of a loss."""
    names = ("metrics", "weighted_metrics", "loss_weights")
    compiled = {name: arguments.pop(name) for name in names if name in arguments}

    def build():
        made = {name: value() if callable(value) else value for name, value in compiled.items()}
        return model(*(make() for make in layers), units=units, activation=activation, loss=function(), **made)

    return build, lambda made: fit(made, y=y, sample_weight=weights, **arguments)


def tokens(x=TOKENS, y=TAGS, weights=None, **arguments):
    names = ("mask", "how", "metrics", "weighted_metrics", "loss")
    compiled = {name: arguments.pop(name) for name in names if name in arguments}
    return lambda: tagger(**compiled), lambda made: fit(made, x, y, sample_weight=weights, **arguments)


class Scalar(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return ops.mean(ops.square(y_true - y_pred))


class Called(keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return ops.mean(ops.square(y_true - y_pred))


def mean_of_all(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred))


def sum_of_all(y_true, y_pred):
    return ops.sum(ops.square(y_true - y_pred)) / 10


def contrastive(y_true, y_pred):
    """Couple examples, with a value for each."""
    scores = ops.matmul(y_pred, ops.transpose(y_true))
    return -ops.diagonal(ops.log_softmax(scores, axis=-1))


def masked_mean(y_true, y_pred):
    values = keras.losses.sparse_categorical_crossentropy(ops.maximum(y_true, 0), y_pred, from_logits=True)
    valid = ops.cast(y_true >= 0, values.dtype)
    return ops.sum(values * valid) / ops.sum(valid)


def root(y_true, y_pred):
    return ops.sqrt(ops.mean(ops.square(y_true - y_pred)))


class Adding(keras.layers.Layer):
    """Layer that adds a loss."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        self.add_loss(self.function(x))
        return x


class ComputeLoss(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.correct = keras.metrics.TruePositives(name="correct")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        self.correct.update_state(y > 0, ops.sigmoid(y_pred))
        return ops.mean(ops.square(y - y_pred)) + ops.sum(self.losses)


class Extended(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight, training) + 0.1 * ops.std(y_pred)


class Guide(keras.Model):
    """Model with a step as in Keras' guide."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            value = self.compute_loss(y=y, y_pred=y_pred)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(value, variables), variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(value)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class Own(keras.Model):
    """Model with a step with a mean of its own, and a tracker."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            value = global_mean(tf.square(self(x, training=True) - y))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        self.tracker.update_state(value)
        return {"loss": self.tracker.result()}


class SumOfMeans(Own):
    """Model with a step that updates a sum with a mean over the examples of a part."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Sum(name="loss")


class Measuring(keras.layers.Layer):
    """Layer with a metric of the examples, or of their mean."""

    def __init__(self, function=lambda values: values):
        super().__init__()
        self.function = function
        self.sizes = keras.metrics.Mean(name="size")

    def call(self, x):
        self.sizes.update_state(self.function(ops.mean(ops.square(x), -1)))
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


def crossentropy(**options):
    return lambda: keras.losses.CategoricalCrossentropy(from_logits=True, **options)


def cells(**options):
    return lambda: keras.losses.Dice(**options)


LOSS_CASES = {
    "loss: mean of all": loss(lambda: mean_of_all),
    "loss: sum of all": loss(lambda: sum_of_all),
    "loss: a class with a scalar": loss(Scalar),
    "loss: a class with __call__": loss(Called),
    "loss: contrastive": loss(lambda: contrastive),
    "loss: root": loss(lambda: root),
    "loss: Dice": loss(cells(), activation="sigmoid", y=(Y > 0).astype("float32")),
    "loss: Dice of each example": loss(cells(axis=(1,)), activation="sigmoid", y=(Y > 0).astype("float32")),
    "loss: Tversky": loss(lambda: keras.losses.Tversky(alpha=0.3), activation="sigmoid", y=(Y > 0).astype("float32")),
    "loss: Circle": (
        lambda: model(units=4, activation=ops.normalize, loss=keras.losses.Circle(gamma=2.0)),
        lambda made: fit(made, y=LABELS),
    ),
    "loss: axis 0": loss(crossentropy(axis=0), units=3, y=ONE_HOT),
    "loss: outputs of rank 1": loss(lambda: "mse", keras.layers.Flatten, units=1, y=Y[:, :1]),
    "loss: binary focal": loss(
        lambda: keras.losses.BinaryFocalCrossentropy(from_logits=True, apply_class_balancing=True), y=(Y > 0) * 1.0
    ),
    "loss: label smoothing, weights": loss(crossentropy(label_smoothing=0.1), units=3, y=ONE_HOT, weights=WEIGHTS),
    "loss: sum": loss(lambda: keras.losses.MeanSquaredError("sum", name="s"), weights=WEIGHTS / 20),
    "loss: none": (
        lambda: model(loss=keras.losses.MeanSquaredError(None), regularizer=None, optimizer=keras.optimizers.SGD(0.01)),
        lambda made: fit(made, sample_weight=WEIGHTS),
    ),
    "loss: mean of weights": loss(
        lambda: keras.losses.MeanSquaredError("mean_with_sample_weight"), weights=WEIGHTS, weighted_metrics=["mae"]
    ),
    "loss: two of one output": loss(lambda: [mean_of_all, "mae"]),
    "tokens: mask": tokens(metrics=["accuracy"]),
    "tokens: mask, weights": tokens(weights=TOKEN_WEIGHTS, weighted_metrics=["accuracy"]),
    "tokens: mask, sum": tokens(how={"reduction": "sum"}, batch_size=8),
    "tokens: mask, mean of weights": tokens(how={"reduction": "mean_with_sample_weight"}, weights=TOKEN_WEIGHTS),
    "tokens: mask, mean without weights": tokens(how={"reduction": "mean_with_sample_weight"}),
    "tokens: ignore_class": tokens(mask=False, y=IGNORED, how={"ignore_class": -1}),
    "tokens: ignore_class, mask, weights": tokens(y=IGNORED, how={"ignore_class": -1}, weights=TOKEN_WEIGHTS),
    "tokens: own masked mean": tokens(mask=False, y=IGNORED, loss=masked_mean),
    "tokens: mask, own loss": tokens(loss=lambda y, p: ops.mean(ops.square(p), -1) + ops.mean(p[..., 0])),
    "tokens: uneven batches": tokens(x=TOKENS[:47], y=TAGS[:47], batch_size=12, metrics=["accuracy"]),
    "uneven: mse": loss(lambda: "mse", batch_size=20, metrics=["mae", root]),
    "uneven: mean of all": (lambda: model(loss=mean_of_all), lambda made: fit(made, X[:47], Y[:47])),
    "uneven: weights": (
        lambda: model(loss=keras.losses.MeanSquaredError("mean_with_sample_weight")),
        lambda made: fit(made, X[:47], Y[:47], sample_weight=WEIGHTS[:47]),
    ),
    "uneven: compute_loss": (lambda: model(kind=ComputeLoss), lambda made: fit(made, X[:47], Y[:47])),
    "added: mean": (lambda: model(Adding(lambda x: ops.mean(ops.square(x)))), fit),
    "added: sum": (lambda: model(Adding(lambda x: ops.sum(ops.square(x)) / 50)), fit),
    "added: mean, uneven": (
        lambda: model(
            Adding(lambda x: [ops.mean(x), ops.mean(x * x)]), keras.layers.Dense(5, activity_regularizer="l2")
        ),
        lambda made: fit(made, X[:47], Y[:47]),
    ),
    "added: sum, uneven": (
        lambda: model(Adding(lambda x: ops.sum(x) / 50), keras.layers.ActivityRegularization(0.01)),
        lambda made: fit(made, X[:47], Y[:47]),
    ),
    "added: two to one step": (lambda: model(Adding(ops.mean), kind=ComputeLoss, steps_per_execution=2), fit),
    "added: synchronized normalization": (
        lambda: model(
            Adding(ops.mean), keras.layers.BatchNormalization(synchronized=True), Adding(lambda x: ops.mean(x * x))
        ),
        fit,
    ),
    "step: compute_loss": (lambda: model(kind=ComputeLoss, loss=None), fit),
    "step: extended compute_loss": (
        lambda: model(kind=Extended, loss=keras.losses.MeanSquaredError("mean_with_sample_weight")),
        lambda made: fit(made, sample_weight=WEIGHTS),
    ),
    "step: as in the guide": (lambda: model(kind=Guide, metrics=["mae"]), fit),
    "step: as in the guide, with losses": (lambda: model(Adding(ops.mean), kind=Guide, metrics=["mae"]), fit),
    "step: own mean": (lambda: model(kind=Own, loss=mean_of_all), fit),
    "metrics: of the user": loss(lambda: "mse", metrics=lambda: [Spread(), root, keras.metrics.R2Score(name="r")]),
    "metrics: that couple": loss(
        lambda: "mse",
        activation="sigmoid",
        y=(Y > 0).astype("float32"),
        metrics=lambda: [
            keras.metrics.MeanMetricWrapper(keras.losses.dice, name="dice"),
            keras.metrics.MeanMetricWrapper(keras.losses.Tversky(), name="tversky"),
            keras.metrics.CosineSimilarity(axis=0, name="cosine"),
            Averaged("mean"),
            Averaged("only_first_replica"),
        ],
    ),
    "metrics: labels of rank 1": loss(
        lambda: "mse",
        units=1,
        y=Y[:, 0],
        metrics=lambda: [keras.metrics.CosineSimilarity(name="cosine"), "mae", keras.metrics.AUC(name="auc")],
    ),
    "metrics: of a layer": loss(lambda: "mse", Measuring, batch_size=20, metrics=["mae"]),
    "metrics: of Keras": loss(
        lambda: keras.losses.BinaryCrossentropy(from_logits=True),
        units=1,
        y=(Y[:, :1] > 0) * 1.0,
        weights=WEIGHTS,
        metrics=lambda: [keras.metrics.AUC(20, from_logits=True, name="auc"), "accuracy", "mae"],
        weighted_metrics=lambda: [keras.metrics.Precision(name="p"), keras.metrics.F1Score(threshold=0.5, name="f")],
    ),
}


class Unequal(Own):
    """Model with a step that averages a mean over the examples of a part, which differs between the replicas."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            value = global_mean(tf.reduce_mean(tf.square(self(x, training=True) - y)))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        return {"loss": value}


class Evaluated(keras.Model):
    """Model with an evaluation step."""

    def test_step(self, data):
        x, y = data
        return {"mean": global_mean(tf.square(self(x, training=False) - y))}


class RawVariable(keras.metrics.Metric):
    """Metric that returns a variable of TensorFlow."""

    def __init__(self):
        super().__init__(name="raw")
        self.total = self.add_variable(shape=(), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(y_pred))

    def result(self):
        return self.total.value


# Statements about the models of cases, whose names begin with the keys.
STATEMENTS = {
    "added: sum": {"added_losses": "sum"},
    "added:": {"added_losses": "mean"},
    "step: as in the guide, with": {"added_losses": "mean", "own_steps": True},
    "step:": {"own_steps": True},
    "guide: VQ-VAE": {"added_losses": "mean", "own_steps": True},
    "guide:": {"own_steps": True},
}


def statements(name):
    """Return the arguments of the function that returns the strategy of a case."""
    return next((made for begin, made in STATEMENTS.items() if name.startswith(begin)), {})


def fit_with_metric_of_another_scope(made):
    metric = keras.metrics.AUC(name="auc")
    with made.distribute_strategy.scope():
        made.compile("sgd", "mse", metrics=[metric])
    fit(made)


# Functions that build the model and that run it, and the error on several replicas.
REFUSED = {
    "a step": (lambda: model(kind=Own), fit, "`train_step` of .* is computed with a part.*pass own_steps=True"),
    "an evaluation step": (lambda: model(kind=Evaluated), fit, "`test_step` of .* is computed with a part"),
    "step: a scalar of the part": (
        lambda: model(kind=Unequal),
        fit,
        "On several replicas, global_mean received other scalars on each",
    ),
    "an added loss": (lambda: model(Adding(ops.mean)), fit, "Layer '.*adding.*' calls `add_loss`.*added_losses='mean'"),
    "a metric of another scope": (model, fit_with_metric_of_another_scope, "'auc' was created outside of the scope"),
    "a raw variable": (lambda: model(metrics=[RawVariable()]), fit, "log 'raw' is a variable of TensorFlow"),
    "an empty part": (
        lambda: model(),
        lambda made: made.fit(tf.data.Dataset.from_tensor_slices((X[:37], Y[:37])).batch(12), verbose=0),
        "A training batch of 1 examples leaves one of . replicas without any",
    ),
}
if hasattr(keras.optimizers, "ScheduleFreeAdamW"):
    REFUSED["an optimizer"] = (
        lambda: model(optimizer=keras.optimizers.ScheduleFreeAdamW()),
        fit,
        "ScheduleFreeAdamW of Keras computes other weights",
    )
