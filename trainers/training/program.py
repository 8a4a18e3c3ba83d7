"""Training programs: command line, and settings of new and of existing runs."""

import dataclasses
import pathlib
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trainers.backends import has_tensorflow, require_packages
from trainers.cli.arguments import Parser, UsageError
from trainers.cli.settings import as_dict, make_parser, options, with_defaults
from trainers.run.folder import Run
from trainers.training.settings import Command, TrainingSettings
from trainers.training.task import Task, recorded_settings, select_relevant

# He et al. (2015), section 4.2: warm-up for depth 110, none for shallower networks.
_WARM_UP_DEPTH = 110


@dataclasses.dataclass(frozen=True)
class Program:
    """A training program."""

    name: str  # module, for messages and config.json, such as "trainers.cifar"
    description: str | None  # in the help
    epilog: str  # end of the help
    command: type[Command]  # options of the command, including `--preset`
    presets: Mapping[str, str]  # options by value of `--preset`; those of "paper" are the defaults of the program
    recipes: Mapping[str, str]  # options by value of `--model` that differ from the defaults of the program

    def parser(self, only_common: bool = False) -> Parser:
        """Return the command line of this program, with the paper's recipe as defaults.

        With `only_common`, its help lists common options only.
        """
        texts = self.name, self.description, self.epilog
        usual = as_dict(self.resolve())
        parser = make_parser(*texts, TrainingSettings, self.command, usual=usual, only_common=only_common)
        parser.usage = f"{parser.prog} [OPTIONS]"
        parser.add_argument("--help-all", action="help", help="show all options and exit")
        return parser

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Train, evaluate or export according to the command line. Returns the exit code."""
        argv = sys.argv[1:] if argv is None else argv
        command, typed = self.split(self.parser(only_common="--help-all" not in argv).parse(argv))
        if command.evaluate is not None or command.export_only is not None:
            from trainers.training import evaluate

            run = Run(command.evaluate or command.export_only)
            task = Task(self.name, self.saved_settings(run, typed), run)
            if command.evaluate is not None:
                return evaluate.evaluate(task, command.mirror)
            return evaluate.export_again(task, command.out)
        # For the figure, and for TensorBoard's files, which TensorFlow writes.
        require_packages("matplotlib", *(["tensorboard"] if has_tensorflow() else []))
        from trainers.training.train import train

        folder, settings = self.settings_to_train(command, typed)
        return train(Task(self.name, settings, Run(folder, overwrites=command.overwrite)))

    def split(self, typed: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Split typed options into (command, settings)."""
        of_command = options(self.command)
        command = with_defaults(self.command, {name: typed[name] for name in typed if name in of_command})
        return command, {name: value for name, value in typed.items() if name not in of_command}

    def resolve(self, preset: str = "paper", typed: Mapping[str, Any] | None = None) -> TrainingSettings:
        """Return the settings of a new run.

        In ascending priority: the defaults of the options, the defaults of the program, the recipe of the network, the
        preset, and the typed options. Except for typed options, those that the network or the data set lacks are
        ignored.
        """
        typed = typed or {}
        defaults = _read(self.presets["paper"])
        table = {} if preset == "paper" else _read(self.presets[preset])
        model = {"model": "identity", **defaults, **table, **typed}["model"]
        recipe = _read(self.recipes.get(model, ""))
        if model in ("resnet", "preresnet") and typed.get("depth", recipe["depth"]) < _WARM_UP_DEPTH:
            recipe["warm_up_steps"] = 0
        return with_defaults(TrainingSettings, defaults, recipe, table, typed)

    def settings_to_train(self, command: Any, typed: Mapping[str, Any]) -> tuple[pathlib.Path, TrainingSettings]:
        """Return (folder, settings) of a new run, or of a run to be resumed.

        Repeating a command resumes its run, as `--resume` does. Both reject settings that differ from the saved ones,
        except that `--resume` accepts a larger number of steps.
        """
        run = Run(command.out or default_out(self.resolve(command.preset, typed), command.preset))
        if command.resume:
            settings = self.saved_settings(run, typed, may_extend=True)
        else:
            settings = self.resolve(command.preset, typed)
            if run.exists() and command.overwrite:
                run.config(self.name)
            elif run.exists():
                _check_same(run, settings, recorded_settings(self.name, run))
        run.check_usable()
        return run.path, settings

    def saved_settings(self, run: Run, typed: Mapping[str, Any], may_extend: bool = False) -> TrainingSettings:
        """Return the settings of an existing run, updated with typed settings that may differ.

        With `may_extend`, the number of steps may be larger than that of the run.

        Raises:
            UsageError: a typed setting differs that may not.
        """
        saved = recorded_settings(self.name, run)
        settings = with_defaults(TrainingSettings, as_dict(saved), typed)
        extends = may_extend and settings.recipe.steps > saved.recipe.steps
        if extends and settings.recipe.depends_on_steps:
            option = "--schedule linear" if settings.recipe.schedule == "linear" else "--lookahead"
            raise UsageError(
                f"{run.path} cannot be extended: with {option} every update depends on --steps. Start a new run with "
                f"another --out."
            )
        _check_same(run, settings, saved, {"steps"} if extends else ())
        return settings


def _read(words: str) -> dict[str, Any]:
    """Return the settings that options on a command line set."""
    return make_parser("", None, "", TrainingSettings).parse(words.split())


def default_out(settings: TrainingSettings, preset: str) -> str:
    """Return the default of --out."""
    name = settings.data.dataset.replace("folder", "imagenet")
    return {"paper": f"runs/{name}", "quick": "runs/quick"}.get(preset, f"runs/{name}-{preset}")


def _check_same(run: Run, settings: TrainingSettings, saved: TrainingSettings, free: Collection[str] = ()) -> None:
    """Raise a UsageError that names the settings that differ from those of a run and may not."""
    compared = {name: value for name, value in select_relevant(as_dict(settings)).items() if name not in free}
    run.check_same(compared, as_dict(saved))
