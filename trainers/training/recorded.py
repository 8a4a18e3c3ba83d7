"""Settings recorded in a run's folder, and the identity of the run that follows from them."""

import json
from typing import Any

from trainers.cli.settings import as_dict, make, options
from trainers.run.folder import Run
from trainers.training.settings import Settings
from trainers.training.task import Task


def recorded_settings(task: type[Task], run: Run, **changes: Any) -> Settings:
    """Return the settings in a run's config.json, with changes."""
    values = run.config(task.program)["settings"]
    return make(Settings, {**values, **changes}, run.config_path)


def free_on_resume() -> set[str]:
    """Return the settings that may differ when a run is resumed: they affect results only by rounding."""
    return {option.name for option in options(Settings).values() if option.free_on_resume}


def identity(task: type[Task], run: Run) -> dict[str, Any]:
    """Return the identity of a run: its program, its data and all settings that affect its results.

    The number of steps is included only if each update depends on it, because runs may be extended.

    Args:
        task: task of the program.
        run: existing run.

    Returns:
        JSON values by name.
    """
    settings = recorded_settings(task, run)
    free = free_on_resume() | (set() if settings.recipe.depends_on_steps else {"steps"})
    values = {name: value for name, value in as_dict(settings).items() if name not in free}
    values |= {"the program": task.program, "the checksum of the data": run.data().digest}
    return json.loads(json.dumps(values))
