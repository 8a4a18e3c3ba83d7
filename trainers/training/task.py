"""Training tasks: settings of one run of a program, and its data."""

import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Any

from idmatters_tf.data.protocols import DataSet
from trainers.cli.arguments import UsageError
from trainers.cli.settings import as_dict, make, options
from trainers.datasets import Source
from trainers.run.folder import WHERE_DATA_ARE, Run
from trainers.training.settings import Devices, Intervals, Settings

if TYPE_CHECKING:
    from idmatters_tf.distribute import ClusterDescription


@dataclasses.dataclass(frozen=True)
class Task:
    """Settings of one run of a program, and its data, which are loaded and fitted once.

    Attributes:
        program: name of the program, such as "trainers.cifar".
        settings: settings of the run.
    """

    program: str
    settings: Settings

    @functools.cached_property
    def source(self) -> Source:
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

    def identity(self, run: Run) -> dict[str, Any]:
        """Return the identity of a run: its program, its data and all settings that affect its results.

        The number of steps is included only if each update depends on it, because runs may be extended.

        Args:
            run: existing run.

        Returns:
            JSON values by name.
        """
        settings = recorded_settings(self.program, run)
        free = free_on_resume() | (set() if settings.recipe.depends_on_steps else {"steps"})
        values = {name: value for name, value in as_dict(settings).items() if name not in free}
        values |= {"the program": self.program, "the checksum of the data": run.data().digest}
        return json.loads(json.dumps(values))

    def check_cluster(self, cluster: "ClusterDescription | None") -> None:
        """Raise UsageError if the settings do not fit the cluster (None: no cluster)."""
        if self.settings.run.curvature_every is not None and cluster is not None:
            raise UsageError("--curvature-every works on one machine, not in a cluster. Remove it.")
        if cluster is None or not cluster.asynchronous:
            return
        for name in ("lookahead", "train_sizes"):
            if getattr(self.settings.recipe, name):
                raise UsageError(
                    f"--{name.replace('_', '-')} requires synchronous training, not parameter servers. Remove it."
                )


def recorded_settings(program: str, run: Run, **changes: Any) -> Settings:
    """Return the settings in the config.json of a run of a program, with changes."""
    return make(Settings, {**run.config(program)["settings"], **changes}, run.config_path)


def free_on_resume() -> set[str]:
    """Return the settings that may differ when a run is resumed: they affect results only by rounding."""
    return {*WHERE_DATA_ARE, *options(Devices), *options(Intervals)}
