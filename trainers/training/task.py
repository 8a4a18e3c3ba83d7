"""What a training program has of its own: its settings, its data, its network, its schedule."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from idmatters_tf.data.protocols import DataSet, EvaluationBatchSource, TrainBatchSource
from trainers.cli.arguments import UsageError
from trainers.cli.settings import with_defaults

if TYPE_CHECKING:
    import keras

    from trainers.cluster.description import ClusterDescription
    from trainers.run.folder import Run
    from trainers.training.learner import Learner
    from trainers.training.schedule import LinearSchedule, Schedule
    from trainers.training.session import Callback


Data = TypeVar("Data", bound=DataSet)


@dataclasses.dataclass
class Task(abc.ABC, Generic[Data]):
    """One training with given settings. Made anew for each command: what it has loaded and fitted goes with it.

    Attributes:
        settings: a `trainers.training.settings.Settings`.
        program: the name of the module, for messages and config.json: "trainers.cifar".
        settings_type, command_type: dataclasses of settings, and of what to do with them.
        presets: the values of `--preset`, with the settings that each changes.
    """

    settings: Any
    program: ClassVar[str]
    settings_type: ClassVar[type]
    command_type: ClassVar[type]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]

    @classmethod
    def resolve(cls, preset: Mapping[str, Any], typed: Mapping[str, Any]) -> Any:
        """The settings of a new run, from a preset and what was typed."""
        return with_defaults(cls.settings_type, preset, typed)

    @classmethod
    @abc.abstractmethod
    def default_out(cls, settings: Any, preset: str) -> str:
        """The run's folder where --out is not given."""

    @functools.cached_property
    def data(self) -> Data:
        """The data, loaded when first asked for; `DataError` or `UsageError` where there are none."""
        return self.load()

    @abc.abstractmethod
    def load(self) -> Data:
        """See `data`."""

    @property
    @abc.abstractmethod
    def training_images(self) -> int:
        """How many images there are to train on."""

    @abc.abstractmethod
    def summary(self) -> str:
        """The size of the data in words."""

    @abc.abstractmethod
    def network(self, image_shape: Sequence[int], classes: int, replicas: int) -> "keras.Model":
        """The network, under the dtype policy in force."""

    def schedule(self) -> "Schedule | LinearSchedule":
        """The learning rate."""
        from trainers.training.schedule import schedule_of

        return schedule_of(self.settings.recipe, self.training_images)

    @abc.abstractmethod
    def train_batches(self) -> TrainBatchSource:
        """What the network is trained on."""

    @abc.abstractmethod
    def test_batches(self) -> EvaluationBatchSource:
        """What it is evaluated on."""

    @abc.abstractmethod
    def examples(self, count: int) -> EvaluationBatchSource:
        """So many of the training images, or all if there are fewer, without augmentation."""

    @abc.abstractmethod
    def title(self, parameters: int) -> str:
        """Of the convergence plot."""

    @property
    def preprocessing(self) -> "keras.layers.Layer | None":
        """A layer fitted to the training images, which exports need; None: each image is standardised by itself."""
        return None

    @property
    def has_preprocessing(self) -> bool:
        """Whether there is a `preprocessing`; the data are not needed to know."""
        return False

    @property
    def preprocess_on_device(self) -> Callable | None:
        """What the devices do to the images of a batch first, see `trainers.training.learner.Learner`."""
        return None

    def check_cluster(self, cluster: "ClusterDescription | None") -> None:
        """Raises UsageError where the settings do not fit the cluster; None: there is none."""
        if self.settings.curvature.curvature_every is not None and cluster is not None:
            raise UsageError("--curvature-every works on one machine, not in a cluster. Leave it out.")
        if cluster is None or not cluster.asynchronous:
            return
        for name in ("average_weights", "lookahead", "train_sizes"):
            if getattr(self.settings.recipe, name):
                raise UsageError(
                    f"--{name.replace('_', '-')} needs synchronous training, not parameter servers. Leave it out."
                )

    def callbacks(self, learner: "Learner", run: "Run") -> Sequence["Callback"]:
        """What is called after each step, see `trainers.training.session.Session`."""
        every, count = dataclasses.astuple(self.settings.curvature)
        if every is None:
            return ()
        from trainers.training.build import in_float32
        from trainers.training.curvature import CurvatureCallback

        model = learner.model
        if self.settings.recipe.precision != "float32":
            with learner.strategy.scope():
                model = in_float32(self, model, learner.strategy.num_replicas_in_sync)
        return [CurvatureCallback(learner, model, self.examples(count), run, every)]

    def explain(self, error: Exception, step: int) -> str:
        """A sentence about data that could not be read at a step; empty where that was not the reason."""
        return ""
