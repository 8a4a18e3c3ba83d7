"""Claim: the paper's whole CIFAR training (60,000 steps, 24 hours on its K40) takes minutes on one data-centre GPU.

    python benchmarks/cifar_on_jax.py --dataset cifar10 --data-dir DIR --out runs/jax
    python benchmarks/cifar_on_jax.py --preset fast --dataset cifar10 --data-dir DIR --out runs/jax-fast

The same Keras networks as everywhere here, on Keras' JAX backend, with the recipe of Hardt & Ma's section 4.1: momentum
0.9 with the rate outside the velocity, batches of 128, learning rate 0.05 divided by 10 at steps 30,000 and 50,000,
weight decay 1e-4, pad by 2, crop, flip, standardise. `--preset fast` is that of `trainers.cifar` (docs/fast.md), with
random flips in place of alternating ones. It needs numpy, keras and jax alone.

What makes it fast: the images lie on the device as bytes (180 MB) and are cropped, flipped and standardised there; a
hundred steps are one `lax.scan`, so that the host only hears of every hundredth; convolutions run in bfloat16 with
`--precision bfloat16`, while weights, skips and logits stay float32. Order and augmentation are functions of (seed,
step): a run that was cut off goes on from its newest checkpoint with the same command, as if nothing had happened.

What to expect: the paper reports 6.38 % on CIFAR-10 and 24.64 % on CIFAR-100. Whether and where this has been run, and
with what result, is in docs/reproduction.md. At the end it prints the test error, the images per second and the share
of the device's matrix-product rate that was reached, the rate being measured in the same run. The folder it leaves
(config.json, metrics.jsonl, result.json) is one that `python -m trainers.report` compares with others.
"""

import argparse
import functools
import json
import math
import os
import pathlib
import sys
import time

os.environ["KERAS_BACKEND"] = "jax"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import keras
import numpy as np

from idmatters_tf._keras_internals import weight_averages
from idmatters_tf._replacing import replacing
from idmatters_tf.clipping import clip_units, precedes_last_layer
from idmatters_tf.data import cifar, shapes
from idmatters_tf.data.images import DataError
from idmatters_tf.layers import PatchWhitening2D, PerImageStandardization
from idmatters_tf.models.all_cnn import all_cnn_c
from idmatters_tf.models.cifar import identity_resnet
from idmatters_tf.models.densenet import densenet
from idmatters_tf.models.normalizer_free import normalizer_free_resnet
from idmatters_tf.models.resnet import preresnet, resnet
from idmatters_tf.optimizers import Momentum, Muon
from trainers.networks import NormalizerFree

NORMALIZER_FREE = {**NormalizerFree.recipes["cifar"], "blocks": 3, "branch_gain": 0.2, "last_kernel_size": 1}
NETWORKS = {
    "identity": identity_resnet,
    "normalizer-free": normalizer_free_resnet,
    "resnet": resnet,
    "preresnet": preresnet,
    "densenet": densenet,
    "all-cnn": all_cnn_c,
}

SHARED = ("optimizer", "steps", "batch_size", "learning_rate", "schedule", "warm_up_steps", "label_smoothing")
SHARED += ("other_rate", "padding_mode", "cutout")
OF_THE_NETWORK = ("blocks", "widths", "stem", "branch_gain", "last_kernel_size", "weight_decay")
PRESETS = {
    "paper": {},
    # The recipe of `trainers.cifar`, as far as this script has its options, and what these are called here.
    "fast": {
        **{name: NORMALIZER_FREE[name] for name in SHARED},
        "network": "normalizer-free",
        "arguments": {name: NORMALIZER_FREE[name] for name in OF_THE_NETWORK},
        "padding": 4,
        "precision": "bfloat16",
    },
}


class Linear(keras.optimizers.schedules.LearningRateSchedule):
    """Up to the learning rate and down to 0 in equal steps, as `trainers.training.schedule.LinearSchedule`."""

    def __init__(self, learning_rate, steps, warm_up_steps):
        self.learning_rate, self.steps, self.warm_up_steps = learning_rate, steps, warm_up_steps

    def __call__(self, step):
        step = keras.ops.cast(step, "float32")
        rising = (step + 1) / (self.warm_up_steps + 1)
        falling = (self.steps - step) / (self.steps - self.warm_up_steps)
        return self.learning_rate * keras.ops.minimum(rising, falling)

    def get_config(self):
        return {"learning_rate": self.learning_rate, "steps": self.steps, "warm_up_steps": self.warm_up_steps}


def parser():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--dataset", choices=("cifar10", "cifar100", "shapes"), default="cifar10", help="the data")
    parser.add_argument("--data-dir", help="folder with the official binary files")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/jax"), help="the run's folder")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="paper", help="defaults of what follows")
    parser.add_argument("--network", choices=tuple(NETWORKS), default="identity", help="the network")
    parser.add_argument(
        "--arguments", type=json.loads, default={}, help="its arguments as JSON, e.g. '{\"blocks\": 3}'"
    )
    parser.add_argument("--steps", type=int, default=60_000, help="updates in all")
    parser.add_argument("--batch-size", type=int, default=128, help="images per update")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="at the start")
    parser.add_argument("--drop-steps", type=int, nargs="*", default=[30_000, 50_000], help="where it is divided by 10")
    parser.add_argument("--schedule", choices=("drops", "linear"), default="drops", help="how the rate changes")
    parser.add_argument("--warm-up-steps", type=int, default=0, help="steps up to the rate, with --schedule linear")
    parser.add_argument("--optimizer", choices=("momentum", "muon"), default="momentum", help="the optimizer")
    parser.add_argument("--other-rate", type=float, default=0.5, help="with muon: factor on all other rates")
    parser.add_argument("--average-weights", type=float, default=0.0, help="decay of averaged weights, tested in place")
    parser.add_argument("--label-smoothing", type=float, default=0.0, help="share spread over all classes")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum")
    parser.add_argument("--clip-norm", type=float, default=math.inf, help="bound on the gradient's global norm")
    parser.add_argument("--adaptive-clipping", type=float, help="bound on each unit's gradient over its weights' norm")
    parser.add_argument("--padding", type=int, default=2, help="pixels a side before cropping; 4 in He et al.")
    parser.add_argument("--padding-mode", choices=("zero", "reflect"), default="zero", help="what is padded with")
    parser.add_argument("--cutout", type=int, default=0, help="side of a square erased from each training image")
    parser.add_argument("--mixup", type=float, default=0.0, help="alpha of mixup (Zhang et al., 2018); 0: none")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of the convolutions")
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    parser.add_argument("--steps-per-dispatch", type=int, help="steps in one call of the device; None: 100, 1 on CPUs")
    parser.add_argument("--evaluate-every", type=int, default=1000, help="steps between tests")
    parser.add_argument("--checkpoint-every", type=int, default=2000, help="steps between checkpoints")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop, saved, after so many minutes")
    return parser


def load(options):
    if options.dataset == "shapes":
        return shapes.load()
    return cifar.load(options.dataset, options.data_dir, download=False)


class Augmentation:
    """Batches as functions of (seed, step), cut out of bytes on the device."""

    def __init__(self, image_shape, options):
        self.size, self.padding, self.batch_size = image_shape[:2], options.padding, options.batch_size
        self.padding_mode, self.cutout, self.mixup = options.padding_mode, options.cutout, options.mixup
        self.order, self.draws = jax.random.split(jax.random.key(options.seed))
        self.standardize = PerImageStandardization(dtype="float32")

    def padded(self, images):
        """The images with their border, on the device."""
        border = (self.padding, self.padding)
        mode = "reflect" if self.padding_mode == "reflect" else "constant"
        return jnp.asarray(np.pad(images, [(0, 0), border, border, (0, 0)], mode=mode))

    def permutations(self, first_step, n):
        """The first position of the epoch in which a dispatch begins, and the orders of this epoch and the next one."""
        epoch = first_step * self.batch_size // n
        orders = [jax.random.permutation(jax.random.fold_in(self.order, epoch + i), n) for i in (0, 1)]
        return epoch * n, jnp.concatenate(orders)

    def batch(self, data, step, first_position, permutation):
        images, labels = data
        positions = step * self.batch_size + jnp.arange(self.batch_size) - first_position
        indices = permutation[positions]
        key = jax.random.fold_in(self.draws, step)
        offsets = jax.random.randint(key, (self.batch_size, 2), 0, 2 * self.padding + 1)
        flips = jax.random.bernoulli(jax.random.fold_in(key, 1), shape=(self.batch_size, 1, 1, 1))

        def crop(index, offset):
            start = (index, offset[0], offset[1], 0)
            return jax.lax.dynamic_slice(images, start, (1, *self.size, images.shape[3]))[0]

        crops = jax.vmap(crop)(indices, offsets)
        crops = self.standardize(jnp.where(flips, crops[:, :, ::-1], crops))
        return self.cut_out(crops, jax.random.fold_in(key, 2)) if self.cutout else crops, labels[indices]

    def share(self, step):
        """The proportion in which neighbours are mixed at a step, see `idmatters_tf.data.mixup`."""
        key = jax.random.fold_in(jax.random.fold_in(self.draws, step), 3)
        p = jax.random.beta(key, self.mixup, self.mixup)
        return jnp.maximum(p, 1 - p)

    def cut_out(self, images, key):
        """The images with a square of zeros centred anywhere in them."""
        first = jax.random.randint(key, (2, self.batch_size, 1), 0, jnp.array(self.size)[:, None, None])
        first -= self.cutout // 2
        rows, cols = (
            (jnp.arange(size) >= start) & (jnp.arange(size) < start + self.cutout)
            for size, start in zip(self.size, first, strict=True)
        )
        return jnp.where((rows[:, :, None] & cols[:, None, :])[..., None], 0.0, images)


def neighbours(values):
    """The first entry in the place of the second and the other way round, and so on."""
    return values.reshape(-1, 2, *values.shape[1:])[:, ::-1].reshape(values.shape)


class Training:
    """A network, its optimizer, and the compiled functions of many steps."""

    def __init__(self, data, options):
        keras.config.set_dtype_policy("mixed_bfloat16" if options.precision == "bfloat16" else "float32")
        arguments = {name: tuple(v) if isinstance(v, list) else v for name, v in options.arguments.items()}
        self.model = NETWORKS[options.network](
            input_shape=data.image_shape, classes=data.classes, **{"seed": options.seed, **arguments}
        )
        rates = [options.learning_rate * 0.1**i for i in range(len(options.drop_steps) + 1)]
        # Keras' schedule keeps the old rate at its boundary; here a drop at step n holds for the update after n.
        boundaries = [drop - 1 for drop in options.drop_steps]
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, rates) if boundaries else rates[0]
        if options.schedule == "linear":
            schedule = Linear(options.learning_rate, options.steps, options.warm_up_steps)
        average = options.average_weights
        averaging = {"use_ema": True, "ema_momentum": average} if average else {}
        if options.optimizer == "muon":
            self.optimizer = Muon(schedule, options.momentum, other_rate=options.other_rate, **averaging)
        else:
            self.optimizer = Momentum(schedule, options.momentum, **averaging)
        self.optimizer.build(self.model.trainable_variables)
        places = {id(variable): place for place, variable in enumerate(self.optimizer.variables)}
        self.averages = [places[id(variable)] for variable in weight_averages(self.optimizer)]
        self.augmentation = Augmentation(data.image_shape, options)
        stem = self.model.layers[1]
        if isinstance(stem, PatchWhitening2D):
            stem.adapt(self.augmentation.standardize(data.train_images[:2000]))
        self.data = self.augmentation.padded(data.train_images), jnp.asarray(data.train_labels)
        self.clipped, self.adaptive_clipping = precedes_last_layer(self.model), options.adaptive_clipping
        self.clip_norm, self.label_smoothing = options.clip_norm, options.label_smoothing

    def state(self):
        groups = self.model.trainable_variables, self.model.non_trainable_variables, self.optimizer.variables
        return tuple([variable.value for variable in group] for group in groups)

    def loss(self, trainable, fixed, images, labels, share):
        logits, fixed, penalties = self.model.stateless_call(
            trainable, fixed, images, training=True, return_losses=True
        )
        logits = logits.astype("float32")
        logarithms = jax.nn.log_softmax(logits)
        entropy = -jnp.take_along_axis(logarithms, labels[:, None], 1).mean()
        if share is not None:
            others = -jnp.take_along_axis(logarithms, neighbours(labels)[:, None], 1).mean()
            entropy = share * entropy + (1 - share) * others
        wrong = jnp.mean(jnp.argmax(logits, 1) != labels)
        smoothing = self.label_smoothing * (-logarithms.mean() - entropy)
        return entropy + smoothing + sum(penalties), (fixed, entropy, wrong)

    def step(self, state, data, step, first_position, permutation):
        trainable, fixed, slots = state
        images, labels = self.augmentation.batch(data, step, first_position, permutation)
        share = self.augmentation.share(step) if self.augmentation.mixup else None
        if share is not None:
            images = share * images + (1 - share) * neighbours(images)
        (_, (fixed, entropy, wrong)), gradients = jax.value_and_grad(self.loss, has_aux=True)(
            trainable, fixed, images, labels, share
        )
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(gradient)) for gradient in gradients))
        shrink = jnp.minimum(1.0, self.clip_norm / norm)
        gradients = [gradient * shrink for gradient in gradients]
        if self.adaptive_clipping:
            gradients = clip_units(gradients, trainable, self.adaptive_clipping, which=self.clipped)
        trainable, slots = self.optimizer.stateless_apply(slots, gradients, trainable)
        return (trainable, fixed, slots), jnp.stack([entropy, wrong, norm])

    def steps(self, state, first_step, count):
        """`count` steps, and the means of their losses, errors and gradient norms."""
        return self._steps(state, self.data, first_step, count)

    @functools.partial(jax.jit, static_argnums=(0, 4), donate_argnums=1)
    def _steps(self, state, data, first_step, count):
        order = self.augmentation.permutations(first_step, len(data[1]))
        # On CPUs XLA's convolutions are some fifty times slower inside a loop.
        if count == 1:
            return self.step(state, data, first_step, *order)
        state, measured = jax.lax.scan(
            lambda state, step: self.step(state, data, step, *order), state, first_step + jnp.arange(count)
        )
        return state, measured.mean(axis=0)

    @functools.partial(jax.jit, static_argnums=0)
    def wrong_and_loss(self, trainable, fixed, images, labels, weights):
        logits = self.model.stateless_call(trainable, fixed, self.augmentation.standardize(images), training=False)[0]
        logits = logits.astype("float32")
        entropies = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)[:, 0]
        return jnp.sum(weights * (jnp.argmax(logits, 1) != labels)), jnp.sum(weights * entropies)

    def test(self, state, images, labels, batch_size=1000):
        """Test error and loss, of the averaged weights where weights are averaged; every image counts once."""
        weights, fixed, slots = state
        weights = [slots[place] for place in self.averages] or weights
        wrong = loss = 0.0
        for start in range(0, len(images), batch_size):
            chosen = np.arange(start, start + batch_size)
            counted = jnp.asarray(chosen < len(images), "float32")
            chosen = np.minimum(chosen, len(images) - 1)
            some = self.wrong_and_loss(weights, fixed, images[chosen], labels[chosen], counted)
            wrong, loss = wrong + float(some[0]), loss + float(some[1])
        return wrong / len(images), loss / len(images)

    def operations(self, state):
        """Floating-point operations of one step, as XLA counts them before it optimises."""
        order = self.augmentation.permutations(0, len(self.data[1]))
        analysis = jax.jit(self.step).lower(state, self.data, 0, *order).cost_analysis()
        return float((analysis[0] if isinstance(analysis, list) else analysis)["flops"])


def matrix_product_rate(precision, size):
    """Floating-point operations per second of one large matrix product, the best of five."""
    matrix = jnp.ones((size, size), "bfloat16" if precision == "bfloat16" else "float32")
    product = jax.jit(lambda a: a @ a)
    product(matrix).block_until_ready()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        product(matrix).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


def save(path, state, step, seconds):
    """Writes a checkpoint, entirely or not at all."""
    arrays = {f"{group}_{i}": np.asarray(array) for group, arrays in enumerate(state) for i, array in enumerate(arrays)}
    with replacing(path) as beside, open(beside, "wb") as stream:
        np.savez(stream, step=step, seconds=seconds, **arrays)


def restore(path, state):
    """The state, step and seconds of a checkpoint; those given and zeros where there is none."""
    if not path.is_file():
        return state, 0, 0.0
    with np.load(path) as saved:
        arrays = [[jnp.asarray(saved[f"{g}_{i}"]) for i in range(len(group))] for g, group in enumerate(state)]
        return tuple(arrays), int(saved["step"]), float(saved["seconds"])


def main(argv=None):
    arguments = parser()
    arguments.set_defaults(**PRESETS[arguments.parse_args(argv).preset])
    options = arguments.parse_args(argv)
    preset = PRESETS[options.preset]
    if options.network == preset.get("network"):
        # As JSON, which is what an earlier run's are compared with.
        options.arguments = json.loads(json.dumps({**preset["arguments"], **options.arguments}))
    on_cpu = jax.default_backend() == "cpu"
    options.steps_per_dispatch = options.steps_per_dispatch or (1 if on_cpu else 100)
    settings = {**vars(options), "out": str(options.out), "clip_norm": str(options.clip_norm), "minutes": None}
    config_path, checkpoint_path = options.out / "config.json", options.out / "checkpoint.npz"
    # Runs from before an option was added had its default.
    usual = vars(parser().parse_args([]))
    if config_path.is_file() and {**usual, **json.loads(config_path.read_text())["settings"]} != settings:
        parser().error(f"--out {options.out} holds a run with other settings: name another folder")
    try:
        data = load(options)
    except DataError as error:
        parser().error(str(error))
    if options.steps_per_dispatch * options.batch_size > len(data.train_labels):
        parser().error(f"--steps-per-dispatch: a dispatch may not be longer than an epoch of {len(data.train_labels)}")

    if options.mixup and options.batch_size % 2:
        parser().error(f"--batch-size must be even with --mixup. Received: {options.batch_size}")

    training = Training(data, options)
    parameters = sum(math.prod(variable.shape) for variable in training.model.trainable_variables)
    device = jax.devices()[0].device_kind
    options.out.mkdir(parents=True, exist_ok=True)
    versions = {"jax": jax.__version__, "keras": keras.__version__, "device": device}
    config = {"settings": settings, "versions": versions, "data": {"origin": data.origin}}
    config_path.write_text(json.dumps(config, indent=2) + "\n")
    state, step, before = restore(checkpoint_path, training.state())
    print(
        f"{data.name}: {options.network}, {parameters:,} parameters, {options.precision} on {device}; from step {step}"
    )
    operations = training.operations(state)

    images, labels = data.test_images, data.test_labels
    metrics_path, began, rates = options.out / "metrics.jsonl", time.perf_counter(), []
    lines = metrics_path.read_text().splitlines() if metrics_path.is_file() else []
    records = [record for record in map(json.loads, lines) if record["step"] <= step]
    metrics_path.write_text("".join(json.dumps(record) + "\n" for record in records))

    def record(**values):
        records.append({**values, "step": step, "seconds": round(before + time.perf_counter() - began, 2)})
        with open(metrics_path, "a") as stream:
            stream.write(json.dumps(records[-1]) + "\n")

    while step < options.steps:
        boundary = min((step // every + 1) * every for every in (options.evaluate_every, options.checkpoint_every))
        count = min(options.steps_per_dispatch, boundary - step, options.steps - step)
        start = time.perf_counter()
        state, measured = training.steps(state, step, count)
        entropy, wrong, norm = (float(value) for value in measured)
        rates.append(count * options.batch_size / (time.perf_counter() - start))
        step += count
        record(kind="train", loss=entropy, error=wrong, gradient_norm=norm, images_per_second=rates[-1])
        if not math.isfinite(entropy):
            sys.exit(f"diverged before step {step}; {checkpoint_path} is from before. Try --clip-norm 1, another --out")
        if step % options.evaluate_every == 0 or step == options.steps:
            error, loss = training.test(state, images, labels)
            record(kind="test", error=error, loss=loss)
            print(
                f"step {step:6}  loss {entropy:.4f}  test error {100 * error:.2f} %  {rates[-1]:,.0f} images/s",
                flush=True,
            )
        late = time.perf_counter() - began > 60 * options.minutes
        if step % options.checkpoint_every == 0 or step == options.steps or late:
            save(checkpoint_path, state, step, before + time.perf_counter() - began)
        if late and step < options.steps:
            print(f"stopped at step {step} after {options.minutes} minutes; the same command goes on")
            return

    tests = [record for record in records if record["kind"] == "test"]
    best = min(tests, key=lambda record: record["error"])
    seconds = before + time.perf_counter() - began
    result = {"steps": step, "best_error": best["error"], "best_step": best["step"], "last_error": tests[-1]["error"],
              "last_loss": tests[-1]["loss"], "parameters": parameters, "seconds": seconds}  # fmt: skip
    if rates:
        rate = float(np.median(rates))
        peak = matrix_product_rate(options.precision, 1024 if on_cpu else 8192)
        result["operations_per_step"] = operations
        result["images_per_second"] = rate
        result["share_of_matrix_product_rate"] = rate / options.batch_size * operations / peak
        print(
            f"{rate:,.0f} images/s (median), {rate / options.batch_size * operations / 1e12:.3g} TFLOP/s: ratio "
            f"{result['share_of_matrix_product_rate']:.3f} to the device's matrix products, {peak / 1e12:.3g} TFLOP/s"
        )
    (options.out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"test error {100 * tests[-1]['error']:.2f} % (best {100 * best['error']:.2f} % at step {best['step']}) "
          f"after {step} steps, {seconds / 60:.1f} minutes")  # fmt: skip


if __name__ == "__main__":
    main()
