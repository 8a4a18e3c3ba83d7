"""The command line of a training program: whether to train, to evaluate or to export, and with which settings."""

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
    """The command line of a task's settings and of what to do with them."""
    program = f"python -m {task.program}"
    parser = Parser(help_all=True, prog=program, usage=f"{program} [OPTIONS]", description=description, epilog=epilog)
    add_options(parser, Settings, lambda chosen: as_dict(task.resolve({}, chosen)))
    add_options(parser, task.command_type)
    return parser


def run_task(task: type[Task], parser: Parser, argv: Sequence[str] | None = None) -> int:
    """Trains, evaluates or exports as the command line says. Returns the exit code."""
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
    """(what to do, the typed settings) of what was typed."""
    of_command = options(task.command_type)
    command = with_defaults(task.command_type, {name: typed[name] for name in typed if name in of_command})
    return command, {name: value for name, value in typed.items() if name not in of_command}


def settings_to_train(task: type[Task], command: Command, typed: Mapping[str, Any]) -> tuple[pathlib.Path, Any]:
    """(the run's folder, the settings): those of a new run, or of one that is to be resumed.

    The same command resumes a run as `--resume` does: both refuse settings that differ from the saved ones, but
    `--resume` takes more steps.
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
    """The settings of a run, with those typed that may differ; refuses others that do.

    Args:
        task: the program's.
        run: an existing one.
        typed: by the settings' names.
        may_extend: whether there may be more steps than the run was to have.
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
    """Raises UsageError, naming them, where settings differ from those of a run that may not."""
    run.check_same(as_dict(settings), as_dict(recorded_settings(task, run)), free_on_resume().union(free))
