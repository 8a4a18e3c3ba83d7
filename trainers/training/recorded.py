"""The settings recorded in a run's folder, and the identity of the run that follows from them."""

import json
from typing import Any

from trainers.cli.settings import as_dict, make, options
from trainers.run.folder import Run
from trainers.training.settings import Settings
from trainers.training.task import Task
from trainers.training.version_0_1 import upgraded


def recorded_settings(task: type[Task], run: Run, **changes: Any) -> Settings:
    """Return the settings in a run's config.json, with changes."""
    values = upgraded(run.config(task.program)["settings"])
    return make(Settings, {**values, **changes}, run.config_path)


def free_on_resume() -> set[str]:
    """The settings that may differ when a run is resumed: they change nothing that it computes, beyond rounding."""
    return {option.name for option in options(Settings).values() if option.free_on_resume}


def identity(task: type[Task], run: Run) -> dict[str, Any]:
    """Return what identifies a run: its program, its data and all settings that change what it computes.

    The number of steps is no part of it unless the learning rate of each step depends on it: a run may be extended.

    Args:
        task: the program's.
        run: an existing one.

    Returns:
        JSON values by name.
    """
    settings = recorded_settings(task, run)
    free = free_on_resume() | (set() if settings.recipe.depends_on_steps else {"steps"})
    values = {name: value for name, value in as_dict(settings).items() if name not in free}
    values |= {"the program": task.program, "the checksum of the data": run.data().digest}
    return json.loads(json.dumps(values))
