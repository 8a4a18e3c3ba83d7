"""Command line of the training programs: training, evaluation and export, with their settings."""

import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import add_options, as_dict, options, parse, with_defaults
from trainers.cli.text import join_command
from trainers.run.folder import Run
from trainers.training.recorded import free_on_resume, recorded_settings
from trainers.training.settings import Command, Settings
from trainers.training.task import Task


def make_parser(task: type[Task], description: str | None, epilog: str) -> Parser:
    """Return the parser of a task's settings and commands."""
    program = f"python -m {task.program}"
    parser = Parser(help_all=True, prog=program, usage=f"{program} [OPTIONS]", description=description, epilog=epilog)
    add_options(parser, Settings, as_dict(task.resolve({}, {})))
    add_options(parser, task.command_type)
    return parser


def run_task(task: type[Task], parser: Parser, argv: Sequence[str] | None = None) -> int:
    """Train, evaluate or export according to the command line. Returns the exit code."""
    command, typed = split(task, parse(parser, argv))
    if command.evaluate is not None:
        from trainers.training.evaluate import evaluate

        run = Run(command.evaluate)
        return evaluate(task(saved_settings(task, run, typed)), run, command.mirror)
    if command.export_only is not None:
        from trainers.training.evaluate import export_again

        run = Run(command.export_only)
        return export_again(task(saved_settings(task, run, typed)), run, command.out)
    from trainers.training.train import train

    folder, settings = settings_to_train(task, command, typed)
    return train(task(settings), folder, command.overwrite)


def split(task: type[Task], typed: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Split typed options into (command, settings)."""
    of_command = options(task.command_type)
    command = with_defaults(task.command_type, {name: typed[name] for name in typed if name in of_command})
    return command, {name: value for name, value in typed.items() if name not in of_command}


def settings_to_train(task: type[Task], command: Command, typed: Mapping[str, Any]) -> tuple[pathlib.Path, Any]:
    """Return (folder, settings) of a new run, or of a run to be resumed.

    Repeating a command resumes its run, as `--resume` does. Both reject settings that differ from the saved ones,
    except that `--resume` accepts a larger number of steps.
    """
    preset = getattr(command, "preset", "")
    if command.resume and command.out is not None:
        run = Run(command.out)
        return run.path, saved_settings(task, run, typed, may_extend=True)
    settings = task.resolve(task.presets.get(preset, {}), typed)
    run = Run(command.out or task.default_out(settings, preset))
    if command.resume:
        return run.path, saved_settings(task, run, typed, may_extend=True)
    if run.exists() and command.overwrite:
        run.config(task.program)
    elif run.exists():
        check_same(task, run, settings)
    run.check_usable()
    return run.path, settings


def saved_settings(task: type[Task], run: Run, typed: Mapping[str, Any], may_extend: bool = False) -> Any:
    """Return the settings of a run, updated with typed settings that may differ.

    Args:
        task: task of the program.
        run: existing run.
        typed: typed settings by name.
        may_extend: True if the number of steps may be larger than that of the run.

    Raises:
        UsageError: a typed setting differs that may not.
    """
    saved = recorded_settings(task, run)
    settings = with_defaults(Settings, as_dict(saved), typed)
    extends = may_extend and settings.recipe.steps > saved.recipe.steps
    if extends and settings.recipe.depends_on_steps:
        option, what = "--lookahead", "weight average"
        if settings.recipe.schedule == "linear":
            option, what = "--schedule linear", "learning rate"
        raise UsageError(
            f"{run.path} cannot be extended: with {option} every step's {what} depends on --steps. "
            f"Start a new run from its weights, with {join_command(['--init-from', run.path])}."
        )
    check_same(task, run, settings, {"steps"} if extends else ())
    return settings


def check_same(task: type[Task], run: Run, settings: Any, free: Collection[str] = ()) -> None:
    """Raise a UsageError that names the settings that differ from those of a run and may not."""
    run.check_same(as_dict(settings), as_dict(recorded_settings(task, run)), free_on_resume().union(free))
