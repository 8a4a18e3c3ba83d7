"""Training tasks: settings of one run of a program, its folder and its data."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from idmatters_tf.data.protocols import DataSet
from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, make, options
from trainers.datasets import ImageSource
from trainers.run.folder import WHERE_DATA_ARE, Run
from trainers.training.settings import Devices, Intervals, TrainingSettings

if TYPE_CHECKING:
    from idmatters_tf.distribute import ClusterDescription


@dataclasses.dataclass(frozen=True)
class Task:
    """Settings and folder of one run of a program such as "trainers.cifar", and its data, which are loaded once."""

    program: str
    settings: TrainingSettings
    run: Run

    @functools.cached_property
    def source(self) -> ImageSource:
        """Loaded data as batches. Raises DataError or UsageError if there are none."""
        recipe = self.settings.recipe
        return self.settings.data.source(recipe.batch_size, recipe.seed)

    @property
    def data(self) -> DataSet:
        """Data set."""
        return self.source.data

    def title(self, parameters: int) -> str:
        """Return the title of the convergence plot."""
        rows, cols, _ = self.data.image_shape
        return (
            f"{self.data.name}, {rows} x {cols} pixels, {self.settings.network.title}, {parameters:,} parameters, seed "
            f"{self.settings.recipe.seed}"
        )

    @functools.cached_property
    def identity(self) -> dict[str, Any] | None:
        """Identity of an existing run: its program, its data and all settings that affect its results.

        The number of steps is included only if each update depends on it, because runs may be extended. None for the
        tasks of a cluster other than the chief, which need no access to the folder.
        """
        if not self.run.writes:
            return None
        settings = recorded_settings(self.program, self.run)
        values = select_relevant(as_dict(settings))
        if not settings.recipe.depends_on_steps:
            del values["steps"]
        values |= {"the program": self.program, "the checksum of the data": self.run.data().digest}
        return json.loads(json.dumps(values))

    def check_cluster(self, cluster: "ClusterDescription | None") -> None:
        """Raise UsageError if the settings do not fit the cluster (None: no cluster)."""
        if self.settings.run.curvature_every is not None and cluster is not None:
            raise UsageError("--curvature-every works on one machine, not in a cluster. Remove it.")
        for name in ("lookahead", "train_sizes") if cluster is not None and cluster.asynchronous else ():
            if getattr(self.settings.recipe, name):
                raise UsageError(
                    f"--{name.replace('_', '-')} requires synchronous training, not parameter servers. Remove it."
                )


def recorded_settings(program: str, run: Run) -> TrainingSettings:
    """Return the settings in the config.json of a run of a program."""
    return make(TrainingSettings, run.config(program)["settings"], run.config_path)


def select_relevant(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that must be the same when a run is resumed; others affect results only by rounding."""
    free = {*WHERE_DATA_ARE, *options(Devices), *options(Intervals)}
    return {name: value for name, value in settings.items() if name not in free}
