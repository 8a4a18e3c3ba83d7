"""Training tasks: settings, data, network and schedule."""

import functools
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from idmatters_tf.data.protocols import DataSet
from trainers.cli.arguments import UsageError
from trainers.cli.settings import with_defaults
from trainers.datasets.source import Source
from trainers.networks import NETWORKS
from trainers.networks.base import Scale
from trainers.training.settings import Command, Settings

if TYPE_CHECKING:
    import keras

    from trainers.cluster.description import ClusterDescription
    from trainers.training.schedule import LinearSchedule, Schedule


class Task:
    """Training task with given settings. Each command creates a new one, which caches loaded and fitted data.

    Programs are subclasses with different defaults.

    Attributes:
        settings: settings of the run.
        program: name of the module, for messages and config.json, such as "trainers.cifar".
        command_type: dataclass of the commands, including the program's `--preset`.
        defaults: settings of the program that differ from the defaults of the options.
        scale: scale of the network recipes that the program uses.
        presets: values of `--preset`, with the settings that each one changes.
    """

    program: ClassVar[str]
    command_type: ClassVar[type[Command]]
    defaults: ClassVar[Mapping[str, Any]] = types.MappingProxyType({})
    scale: ClassVar[Scale]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]

    def __init__(self, settings: Settings):
        self.settings = settings

    @classmethod
    def resolve(cls, preset: Mapping[str, Any], typed: Mapping[str, Any]) -> Settings:
        """Return the settings of a new run.

        In ascending priority: the defaults of the options, the defaults of the program, the recipe of the network, the
        preset, and the typed options. Except for typed options, those that the network or the data set lacks are
        ignored.
        """
        given = {"model": "identity", **cls.defaults, **preset, **typed}
        network = NETWORKS.get(given["model"])
        recipe = {} if network is None else network.recipe(cls.scale, given)
        return with_defaults(Settings, cls.defaults, recipe, preset, typed)

    @classmethod
    def default_out(cls, settings: Settings, preset: str) -> str:
        """Return the default of --out."""
        name = settings.data.dataset.replace("folder", "imagenet")
        return {"quick": "runs/quick", "fast": f"runs/{name}-fast"}.get(preset, f"runs/{name}")

    @functools.cached_property
    def source(self) -> Source[Any]:
        """Loaded data as batches. Raises DataError or UsageError if there are none."""
        recipe = self.settings.recipe
        return self.settings.data.source(recipe.batch_size, recipe.seed)

    @property
    def data(self) -> DataSet:
        """Data set."""
        return self.source.data

    def network(self, image_shape: Sequence[int], classes: int, replicas: int = 1) -> "keras.Model":
        """Build the network under the current dtype policy. Raises UsageError if the images are too small for it."""
        recipe, network = self.settings.recipe, self.settings.network
        try:
            return network.build(image_shape, classes, recipe.weight_penalty, recipe.seed, replicas)
        except ValueError as error:
            raise UsageError(
                f"--model {network.model} cannot be built for images of shape {tuple(image_shape)}. Use larger images "
                f"or different sizes of the network ({str(error).splitlines()[0]})."
            ) from error

    def schedule(self) -> "Schedule | LinearSchedule":
        """Return the learning rate as a function of the step."""
        from trainers.training.schedule import build_schedule

        return build_schedule(self.settings.recipe, self.source.training_images)

    def title(self, parameters: int) -> str:
        """Return the title of the convergence plot."""
        rows, cols, _ = self.data.image_shape
        return (
            f"{self.data.name}, {rows} x {cols} pixels, {self.settings.network.title}, {parameters:,} parameters, seed "
            f"{self.settings.recipe.seed}"
        )

    def check_cluster(self, cluster: "ClusterDescription | None") -> None:
        """Raise UsageError if the settings do not fit the cluster (None: no cluster)."""
        if self.settings.curvature.curvature_every is not None and cluster is not None:
            raise UsageError("--curvature-every works on one machine, not in a cluster. Remove it.")
        if cluster is None or not cluster.asynchronous:
            return
        for name in ("lookahead", "train_sizes"):
            if getattr(self.settings.recipe, name):
                raise UsageError(
                    f"--{name.replace('_', '-')} requires synchronous training, not parameter servers. Remove it."
                )
