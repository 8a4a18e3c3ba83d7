"""What every training program does, whatever it trains: settings, the run, the cluster, training, results, exports."""

import abc
import contextlib
import math

from trainers.cli.arguments import RunError, UsageError
from trainers.cli.startup import import_tensorflow, say
from trainers.cluster import description as clusters
from trainers.cluster.join import Alone, join
from trainers.run.folder import Run
from trainers.training import options

# Each task of a cluster may have its own of these; everything else has to be the same everywhere.
OWN_SETTINGS = frozenset({"data_dir", "download", "preset", "keep_checkpoints", "cluster_timeout"})
_MODES = ("resume", "evaluate", "export_only", "debug")


class Program(abc.ABC):
    """A training program; the sub-class says what is its own.

    Settings are a dict of JSON values by option name. `data` below is what `load` returned: it has `name`, `origin`,
    `classes`, `image_shape` and `digest()`.

    Attributes:
        name: of the module, for messages: python -m trainers.NAME.
        presets: a dict from preset to the settings that it changes.
        later_defaults: settings that older runs lack, with what they amounted to.
    """

    name: str
    presets: dict
    later_defaults: dict = {}  # noqa: RUF012 - never changed

    @abc.abstractmethod
    def parser(self):
        """The command line, a `trainers.cli.arguments.Parser`."""

    @abc.abstractmethod
    def check_together(self, settings):
        """Raises UsageError for options that are wrong together."""

    @abc.abstractmethod
    def load(self, settings):
        """The data; raises UsageError where there are none."""

    @abc.abstractmethod
    def counts(self, data):
        """How many pictures there are, in words."""

    @abc.abstractmethod
    def network(self, settings, image_shape, classes, norm):
        """The network under the dtype policy in force, with a normalisation as the models' `norm`."""

    @abc.abstractmethod
    def recipe(self, settings, data):
        """The `trainers.training.loop.Recipe`."""

    @abc.abstractmethod
    def train_batches(self, settings, data):
        """As `idmatters_tf.data.batches.TrainBatches`."""

    @abc.abstractmethod
    def test_batches(self, settings, data):
        """As `idmatters_tf.data.batches.EvaluationBatches`."""

    @abc.abstractmethod
    def title(self, settings, parameters):
        """Of the convergence plot."""

    def finish(self, settings):
        """What the devices do to the pictures of a batch first, see `trainers.training.loop.Trainer`."""
        return None  # noqa: RET501 - a value, not the lack of one

    def default_out(self, settings):
        """The run's folder where --out is not given."""
        return f"runs/{settings['dataset']}"

    def combine(self, defaults, preset, explicit):
        """The settings of a new run, from the options' defaults, the preset and what was typed."""
        return {**defaults, **preset, **explicit}

    def started(self, run, settings, data):  # noqa: B027 - most programs have nothing to do then
        """Called when the run's folder is there, by the task that writes to it."""

    def preprocessing(self, run):
        """The layer that exports put in front of the network; None: standardisation, picture by picture."""
        return None  # noqa: RET501 - a value, not the lack of one

    def watches(self, settings, trainer, data, run):
        """What the loop calls after each step, see `trainers.training.loop.Session`."""
        return []

    def read_failure(self, settings, data, error, step):
        """A sentence about data that could not be read while training; empty where that was not the reason."""
        return ""

    def main(self, argv=None):
        """Runs the program; returns its exit code."""
        explicit, defaults = self.parser().parse(argv)
        modes = [name for name in ("evaluate", "export_only", "resume") if explicit.get(name)]
        if len(modes) > 1:
            raise UsageError("--evaluate, --export-only and --resume exclude one another: give one of them.")
        if explicit.get("evaluate") or explicit.get("export_only"):
            run = Run(explicit.pop("evaluate", None) or explicit.pop("export_only"))
            settings = self.settings_of(run, explicit)
            return self._evaluate(run, settings) if modes == ["evaluate"] else self._export(run, settings)
        run, settings = self.resolve(explicit, defaults)
        return self._train(run, settings)

    def resolve(self, explicit, defaults):
        """The run's folder and its settings: a saved run's, or the defaults, the preset and what was typed, in turn."""
        resume = explicit.pop("resume", False)
        preset = self.presets[explicit.get("preset", defaults["preset"])]
        settings = self.combine(defaults, preset, explicit)
        settings = {name: value for name, value in settings.items() if name not in _MODES}
        out = settings.pop("out")
        run = Run(self.default_out(settings) if out is None else out)
        if resume:
            settings = self.settings_of(run, explicit)
        elif run.exists():
            run.check_same(settings)
        run.check_usable()
        self.check_together(settings)
        return run, settings

    def settings_of(self, run, explicit):
        """A saved run's settings, with the explicit ones that may differ; refuses others that do."""
        saved = run.config()["settings"]
        explicit = {name: value for name, value in explicit.items() if name not in ("out", "debug", "resume")}
        run.check_same(explicit)
        return {**options.LATER_DEFAULTS, **self.later_defaults, **saved, **explicit}

    def build(self, settings, image_shape, classes, dtype=None, replicas=1):
        """The network that the settings describe, under a dtype policy (None: the one in force).

        With several replicas, batch normalisation takes the statistics of the global batch, as one device would.
        """
        import keras

        norm = None if settings["norm"] == "none" else "batch" if replicas == 1 else "synchronized"
        previous = keras.config.dtype_policy()
        keras.config.set_dtype_policy(dtype or previous)
        try:
            return self.network(settings, image_shape, classes, norm)
        finally:
            keras.config.set_dtype_policy(previous)

    def _train(self, run, settings):
        result = run.result() if run.exists() else None
        if result is not None:
            print(f"{run.path} is finished. {_sentence(result)} Give another --out for a new run.")
            return 0
        description = clusters.find(settings["control_port"], settings["parameter_servers"])
        strategy = options.resolve_strategy(settings, description)
        shared = {name: value for name, value in settings.items() if name not in OWN_SETTINGS}
        with join(
            description, shared, run.path, settings["cluster_timeout"], say, run.newest_checkpoint_sentence
        ) as cluster:
            if cluster.serves:
                import_tensorflow()
                from trainers.training.asynchronous import serve

                return serve(cluster, say)
            run.writes = cluster.is_chief
            return self._train_here(run, settings, strategy, cluster)

    def _train_here(self, run, settings, strategy, cluster):
        if not cluster.alone or settings["logical_cpus"] > 1:
            # Several workers or logical devices have to be set up before TensorFlow computes anything.
            strategy = self._strategy(settings, strategy, cluster)
        # Else before TensorFlow is imported: what is missing is said at once.
        data = self.load(settings)
        if run.writes:
            say(f"{data.name}: {self.counts(data)} ({data.origin})")
        import_tensorflow()
        from trainers.run.events import Events

        cluster.agree("the data", data.digest())
        trainer = self._trainer(settings, data, strategy, cluster)
        described = {name: getattr(data, name) for name in ("origin", "image_shape", "classes")}
        run.start(settings, {**described, "digest": data.digest()})
        if run.writes:
            self.started(run, settings, data)
        parameters = sum(math.prod(variable.shape) for variable in trainer.model.trainable_variables)
        if run.writes:
            devices = _devices(trainer, cluster)
            say(f"{parameters:,} trainable parameters on {devices}, {settings['precision']}; results in {run.path}")
        train = self.train_batches(settings, data)
        events = Events(run.path / "events", run.writes)
        session = _session(run, trainer, train, self.test_batches(settings, data), events, cluster)
        first = session.resume(say)
        if first and run.writes:
            say(f"going on from step {first}")
        with self._explained(settings, data, trainer):
            if not first:
                events.settings(settings)
                events.pictures(train.batch(0, stop=min(8, settings["batch_size"]))[0])
            session.watches = self.watches(settings, trainer, data, run)
            if run.writes:
                say("compiling the training step ...")
            signal = session.work()
        if signal is not None:
            if run.writes:
                resume = f"python -m trainers.{self.name} --resume --out {run.path}"
                again = resume if cluster.alone else "the same command"
                say(f"stopped by {signal.name}; saved. To go on: {again}")
            return 128 + signal
        return self._finish(run, settings, trainer, events, parameters) if run.writes else 0

    @contextlib.contextmanager
    def _explained(self, settings, data, trainer):
        try:
            yield
        except Exception as error:
            sentence = self.read_failure(settings, data, error, int(trainer.step.numpy()))
            if not sentence:
                raise
            raise RunError(sentence) from error

    def _strategy(self, settings, name, cluster):
        import_tensorflow()
        from trainers.cluster import strategy as strategies

        return strategies.make(name, settings["logical_cpus"], cluster.description)

    def _trainer(self, settings, data, strategy, cluster):
        import keras
        import tensorflow as tf

        if isinstance(strategy, str):
            strategy = self._strategy(settings, strategy, cluster)
        if cluster.asynchronous:
            from trainers.training.asynchronous import AsynchronousTrainer as Trainer
        else:
            from trainers.training.loop import Trainer
        replicas = strategy.num_replicas_in_sync
        if settings["batch_size"] % replicas:
            raise UsageError(
                f"--batch-size must be a multiple of the {replicas} replicas. Received: {settings['batch_size']}"
            )
        if settings["deterministic"]:
            tf.config.experimental.enable_op_determinism()
        keras.utils.set_random_seed(settings["seed"])
        dtype = "mixed_bfloat16" if settings["precision"] == "bfloat16" else "float32"
        return Trainer(
            strategy,
            lambda: self.build(settings, data.image_shape, data.classes, dtype, replicas),
            self.recipe(settings, data),
            settings["batch_size"],
            self.finish(settings),
        )

    def _finish(self, run, settings, trainer, events, parameters):
        """The plot, the exports, the result."""
        from trainers.run import figures as plots

        records = run.metrics()
        tests = [record for record in records if record["kind"] == "test"]
        best = min(tests, key=lambda record: record["error"])
        result = {
            "steps": settings["steps"],
            "best_error": best["error"],
            "best_step": best["step"],
            "last_error": tests[-1]["error"],
            "last_loss": tests[-1]["loss"],
            "parameters": parameters,
            "seconds": records[-1]["seconds"],
        }
        if "top5_error" in tests[-1]:
            result["last_top5_error"] = tests[-1]["top5_error"]
        drops = trainer.recipe.drop_steps
        plots.convergence(records, run.path / "convergence.png", self.title(settings, parameters), drops)
        self._write_exports(run, settings, trainer.model)
        events.settings(settings, result)
        run.finish(result)
        print(_sentence(result))
        print(f"convergence plot:      {run.path / 'convergence.png'}")
        return 0

    def _write_exports(self, run, settings, model):
        from trainers.training.export import export, how_to_load

        # Rebuilt in float32 and for one device: what is served should not depend on how it was trained.
        network = self.build(settings, model.input_shape[1:], model.output_shape[-1], dtype="float32")
        network.set_weights(model.get_weights())
        try:
            print(how_to_load(*export(network, run.path, self.preprocessing(run))))
        except OSError as error:
            raise RunError(
                f"the export to {run.path} failed: {error}. Make room, then use --export-only {run.path}"
            ) from error

    def _evaluate(self, run, settings):
        _require_checkpoint(run)
        data = self.load(settings)
        import_tensorflow()
        # On this machine alone, whatever cluster it was trained on.
        here = settings["strategy"] if settings["strategy"] in ("one", "mirrored") else "auto"
        trainer = self._trainer(settings, data, here, Alone())
        step = _restore(run, trainer.model)
        measured = trainer.evaluate(self.test_batches(settings, data))
        top5 = f", top-5 error {100 * measured['top5_error']:.2f} %" if "top5_error" in measured else ""
        print(
            f"{run.path}, step {step}: test error {100 * measured['error']:.2f} %{top5}, test loss "
            f"{measured['loss']:.4f} on {measured['count']:,} pictures"
        )
        return 0

    def _export(self, run, settings):
        _require_checkpoint(run)
        saved = run.config()["data"]
        import_tensorflow()
        model = self.build(settings, tuple(saved["image_shape"]), saved["classes"], dtype="float32")
        print(f"{run.path}, step {_restore(run, model)}:")
        self._write_exports(run, settings, model)
        return 0


def _session(run, trainer, train, test, events, cluster):
    if cluster.asynchronous:
        from trainers.training.asynchronous import AsynchronousSession as Session
    else:
        from trainers.training.loop import Session
    return Session(run, trainer, train, test, events, cluster)


def _require_checkpoint(run):
    if not list(run.checkpoints_path.glob("step-*")):
        raise UsageError(f"{run.path} has no checkpoints yet. Train it first: --resume --out {run.path}")


def _restore(run, model):
    from trainers.training.checkpoints import restore_weights

    step = restore_weights(run.checkpoints_path, model, say)
    if step is None:
        raise UsageError(f"{run.path} has no intact checkpoint. Train it again with another --out.")
    return step


def _devices(trainer, cluster):
    replicas = trainer.strategy.num_replicas_in_sync
    here = "1 device" if replicas == 1 else f"{replicas} replicas"
    if cluster.alone:
        return here
    if cluster.asynchronous:
        servers = len(cluster.description.jobs["ps"])
        return f"{cluster.workers} asynchronous workers of {here}, {servers} parameter servers"
    return f"{here} of {cluster.workers} workers"


def _sentence(result):
    top5 = f", top-5 {100 * result['last_top5_error']:.2f} %" if "last_top5_error" in result else ""
    return (
        f"test error: best {100 * result['best_error']:.2f} % (step {result['best_step']}), "
        f"last {100 * result['last_error']:.2f} %{top5} (step {result['steps']}), "
        f"after {result['seconds'] / 60:.1f} minutes."
    )
