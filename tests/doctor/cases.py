"""Scripts in which two runs differ, from threads of issues, and their clean twins.

Each case is (script, replacement that makes it clean, kind of second run, words of the report).
"""

HEAD = """
import os, random
import keras, numpy as np

"""
MODEL = """
x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
y = x[:, :1]

def build(optimizer="adam", loss="mse"):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer, loss)
    return model
"""
SEEDED = "keras.utils.set_random_seed(0)\n"


def seeded(script):
    """Return a script that begins with seeds and the model."""
    return HEAD + SEEDED + MODEL + script


# keras 22620: NumPy and TensorFlow are reseeded, Python is not.
initial_weights = (
    HEAD + "np.random.seed(0)\n" + MODEL + "build().fit(x, y, batch_size=8, verbose=0)\n",
    ("np.random.seed(0)\n", SEEDED),
    "again",
    ("step 1, weights", "Python's generator `random`", "keras.utils.set_random_seed"),
)

# The same for a model that its first step builds.
weights_of_the_first_step = (
    HEAD
    + MODEL
    + """
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
    def call(self, inputs):
        return self.dense(inputs)
model = Own()
model.compile("sgd", "mse")
model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
""",
    ("model = Own()", SEEDED + "model = Own()"),
    "again",
    ("weights", "initial weights differ", "keras.utils.set_random_seed"),
)

# keras 11365: threads draw from one generator.
threads_of_a_dataset = (
    seeded("""
import time
class Data(keras.utils.PyDataset):
    def __init__(self):
        super().__init__(workers=4)
    def __len__(self):
        return 32
    def __getitem__(self, index):
        time.sleep(random.SystemRandom().random() / 100)
        part = x[8 * (index % 4) : 8 * (index % 4) + 8]
        return part + np.random.normal(size=part.shape).astype("float32"), part[:, :1]
build().fit(Data(), shuffle=False, verbose=0)
"""),
    ("np.random.normal(", "np.random.default_rng([0, index]).normal("),
    "again",
    ("batch", "threads draw from one generator"),
)

# tensorflow 34909: a shared generator in a parallel map.
parallel_map = (
    seeded("""
import time
import tensorflow as tf
generator = np.random.default_rng(0)
def noise(index):
    time.sleep(random.SystemRandom().random() / 50)
    return generator.normal(size=4).astype("float32")
def add(index, image):
    return image + tf.ensure_shape(tf.numpy_function(noise, [index], tf.float32), [4]), image[:1]
data = tf.data.Dataset.from_tensor_slices((np.arange(32), x)).map(add, num_parallel_calls=4).batch(8)
build().fit(data, verbose=0)
"""),
    ("    return generator.normal", "    return np.random.default_rng([0, index]).normal"),
    "again",
    ("batch", "threads draw from one generator"),
)

# VeOmni 330: files in the order of the folder.
order_of_a_folder = (
    seeded("""
os.makedirs("images", exist_ok=True)
for number in range(8):
    np.save(f"images/{number}.npy", x[4 * number : 4 * number + 4])
images = np.concatenate([np.load(f"images/{name}") for name in os.listdir("images")])
build().fit(images, images[:, :1], batch_size=8, shuffle=False, verbose=0)
"""),
    ('os.listdir("images")', 'sorted(os.listdir("images"))'),
    "listdir",
    ("batch", "order of the entries of a folder", "sorted(os.listdir(folder))"),
)

# tensorflow 39751: an operation whose gradient is not deterministic.
noisy_gradient = (
    seeded("""
def noise(values):
    return np.asarray(values) * np.float32(1 + 1e-6 * random.SystemRandom().random())

if keras.backend.backend() == "jax":
    import jax
    noisy = jax.custom_vjp(lambda tensor: tensor)
    noisy.defvjp(
        lambda tensor: (tensor, None),
        lambda _, slope: (jax.pure_callback(noise, jax.ShapeDtypeStruct(slope.shape, slope.dtype), slope),),
    )
else:
    import tensorflow as tf
    @tf.custom_gradient
    def noisy(tensor):
        def backward(slope):
            return tf.ensure_shape(tf.numpy_function(noise, [slope], tf.float32), slope.shape)
        return tf.identity(tensor), backward

class Noisy(keras.layers.Layer):
    def call(self, inputs):
        return noisy(inputs)

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), Noisy(), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
model.fit(x, y, batch_size=8, verbose=0)
"""),
    ("random.SystemRandom().random()", "0.5"),
    "again",
    ("gradient of", "dense/", "not deterministic", "rounding"),
)

# keras 20147: the variables of an adapted layer are restored, what it derives from them is not.
normalization = (
    seeded("""
class Adapted(keras.layers.Layer):
    def build(self, shape):
        self.mean = self.add_weight(name="mean", shape=shape[1:], trainable=False)
        self.shift = np.zeros(shape[1:], "float32")

    def adapt(self, data):
        self.mean.assign(data.mean(0))
        self.shift = data.mean(0)

    def call(self, inputs):
        return inputs - self.shift

adapted = Adapted(name="normalization")
model = keras.Sequential([keras.Input((4,)), adapted, keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
if not os.path.exists("backup"):
    adapted.adapt(x + 1)
callbacks = [keras.callbacks.BackupAndRestore("backup")]
model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
"""),
    ('if not os.path.exists("backup"):\n    adapted', "if True:\n    adapted"),
    "restart",
    ("Adapted.shift", "normalization`", "equal before it:  weights, optimizer, state"),
)

# tf-keras 70: weights are saved, the optimizer is not.
optimizer_not_saved = (
    seeded("""
class Save(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save_weights("last.weights.h5")

model = build()
if os.path.exists("last.weights.h5"):
    model.load_weights("last.weights.h5")
model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=[Save()])
"""),
    (
        """        self.model.save_weights("last.weights.h5")

model = build()
if os.path.exists("last.weights.h5"):
    model.load_weights("last.weights.h5")
""",
        """        self.model.save("last.keras")

model = keras.saving.load_model("last.keras") if os.path.exists("last.keras") else build()
""",
    ),
    "restart",
    ("step 5, optimizer", "iterations", "did not restore the optimizer"),
)

# keras 22490: the data begin again.
position_of_the_data = (
    seeded("""
def batches():
    start = 0
    while True:
        yield x[start % 32 : start % 32 + 8], y[start % 32 : start % 32 + 8]
        start += 8
model = build()
callbacks = [keras.callbacks.BackupAndRestore("backup")]
model.fit(batches(), steps_per_epoch=3, epochs=3, verbose=0, callbacks=callbacks)
"""),
    ("    start = 0\n", "    start = 24 if os.path.exists('backup/latest.weights.h5') else 0\n"),
    "restart",
    ("step 4, batch", "the batch is batch 0", "ExactResume"),
)

# keras 17012: BackupAndRestore does not restore the best value of another callback.
best_value = (
    seeded("""
model = build()
saver = keras.callbacks.ModelCheckpoint("best.keras", monitor="loss", save_best_only=True)
if os.path.exists("backup") and False:
    saver.best = float(open("best.txt").read())

class Note(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        open("best.txt", "w").write(repr(float(saver.best)))

callbacks = [saver, Note(), keras.callbacks.BackupAndRestore("backup")]
model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
"""),
    ("and False", "and True"),
    "restart",
    ("callbacks: ModelCheckpoint.best", "was not restored"),
)

# keras 19891: a loss that returns one number, on replicas.
scalar_loss = (
    seeded("""
import tensorflow as tf
def loss(labels, outputs):
    return keras.ops.mean(keras.ops.square(labels - outputs))
with tf.distribute.MirroredStrategy(tf.config.list_logical_devices("CPU")).scope():
    model = build(keras.optimizers.SGD(0.1), loss)
model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
"""),
    ("square(labels - outputs))\n", "square(labels - outputs), axis=-1)\n"),
    "replicas=2",
    ("exactly 2 times",),
)

EXACT = ('keras.callbacks.BackupAndRestore("backup")', 'ExactResume("backup", every=2)')

# A counter of averaged weights starts again.
averaged_weights = (
    seeded("""
from idmatters_tf.callbacks import ExactResume
class Average(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.count, self.average = 0, []
    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        weights = self.model.get_weights()
        before = self.average or weights
        self.average = [a + (w - a) / self.count for a, w in zip(before, weights)]
callbacks = [Average(), keras.callbacks.BackupAndRestore("backup")]
build().fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
"""),
    EXACT,
    "restart",
    ("callbacks: Average.count", "was not restored", "ExactResume"),
)

# The state of a generator is restored before the last draw.
off_by_one_draw = (
    seeded("""
import json
class Draws(keras.utils.PyDataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return x[:8] + rng.normal(size=(8, 4)).astype("float32"), y[:8]
class Save(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        if os.path.exists("rng.json"):
            rng.bit_generator.state = json.load(open("rng.json"))
            rng.normal()
    def on_epoch_end(self, epoch, logs=None):
        json.dump(rng.bit_generator.state, open("rng.json", "w"))
rng = np.random.default_rng(0)
callbacks = [Save(), keras.callbacks.BackupAndRestore("backup")]
build().fit(Draws(), epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
"""),
    ("            rng.normal()\n", ""),
    "restart",
    ("step 5, batch", "not restored"),
)

# The weights are equal, the masks of dropout are not.
unseeded_dropout = (
    HEAD
    + MODEL
    + """
layers = [keras.layers.Dropout(0.5), keras.layers.Dense(1, kernel_initializer="ones")]
model = keras.Sequential([keras.Input((4,)), *layers])
model.compile("adam", "mse")
model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
""",
    ("Dropout(0.5)", "Dropout(0.5, seed=1)"),
    "again",
    ("step 1, generators", "layer's generator", "set_random_seed"),
)

order_of_a_set = (
    seeded("""
names = "ant bat cat dog emu fox gnu hen".split()
numbers = {name: number for number, name in enumerate(set(names))}
y = np.array([[numbers[name]] for name in 4 * names], "float32")
build().fit(x, y, batch_size=8, shuffle=False, verbose=0)
"""),
    ("enumerate(set(names))", "enumerate(sorted(set(names)))"),
    "hashseed",
    ("step 1, batch", "order of a set", "sorted(names)"),
)

number_of_threads = (
    seeded("""
threads = int(os.environ.get("OMP_NUM_THREADS", 4))
x = np.concatenate([np.random.default_rng(part).normal(size=(32 // threads, 4)) for part in range(threads)])
build().fit(x, y, batch_size=8, shuffle=False, verbose=0)
"""),
    ('int(os.environ.get("OMP_NUM_THREADS", 4))', "4"),
    "threads=1",
    ("step 2, batch", "number of threads"),
)

metric_alone = (
    seeded("""
offset = random.SystemRandom().random()
def shifted(labels, outputs):
    return keras.ops.mean(outputs) + offset
model = build()
model.compile("adam", "mse", metrics=[shifted])
model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
"""),
    ("random.SystemRandom().random()", "1.0"),
    "again",
    ("logs: shifted", "Only logs differ", "check the metric"),
)

# The warm-up of a callback begins again.
schedule = (
    seeded("""
from idmatters_tf.callbacks import ExactResume
class Warmup(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = 0
    def on_train_batch_begin(self, batch, logs=None):
        self.seen += 1
        self.model.optimizer.learning_rate = 0.001 * self.seen
callbacks = [Warmup(), keras.callbacks.BackupAndRestore("backup")]
build().fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
"""),
    EXACT,
    "restart",
    ("optimizer: learning rate", "Warmup.seen", "ExactResume"),
)

CASES = {
    "initial weights": initial_weights,
    "weights of the first step": weights_of_the_first_step,
    "threads of a PyDataset": threads_of_a_dataset,
    "parallel map": parallel_map,
    "order of a folder": order_of_a_folder,
    "noisy gradient": noisy_gradient,
    "adapted layer": normalization,
    "optimizer not saved": optimizer_not_saved,
    "position of the data": position_of_the_data,
    "best value": best_value,
    "scalar loss": scalar_loss,
    "averaged weights": averaged_weights,
    "off by one draw": off_by_one_draw,
    "unseeded dropout": unseeded_dropout,
    "order of a set": order_of_a_set,
    "number of threads": number_of_threads,
    "metric alone": metric_alone,
    "schedule": schedule,
}
