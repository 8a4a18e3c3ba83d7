"""Training programs: command line, and settings of new and of existing runs."""

import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.backends import has_tensorflow, require_packages
from trainers.cli.arguments import Parser
from trainers.cli.settings import as_dict, make_parser, options, with_defaults
from trainers.run.folder import Run
from trainers.training.settings import Command, Task, TrainingSettings, recorded_settings

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

    @functools.cached_property
    def _parser(self) -> Parser:
        """Parser of the command line, of the presets and of the recipes of the networks."""
        parser = make_parser(self.name, self.description, self.epilog, TrainingSettings, self.command)
        parser.usage = f"{parser.prog} [OPTIONS]"
        parser.add_argument("--help-all", action="help", help="show all options and exit")
        return parser

    @functools.cached_property
    def _tables(self) -> dict[str, dict[str, Any]]:
        """Settings of the presets and recipes by their words."""
        return {words: self._parser.parse(words.split()) for words in {*self.presets.values(), *self.recipes.values()}}

    def parser(self, only_common: bool = False) -> Parser:
        """Return the parser of the command line, whose help shows the paper's recipe as defaults.

        With `only_common`, the help lists common options only.
        """
        self._parser.describe(as_dict(self.resolve()), only_common)
        return self._parser

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

        run, settings = self.settings_to_train(command, typed)
        return train(Task(self.name, settings, run))

    def split(self, typed: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Split typed options into (command, settings)."""
        of_command = options(self.command)
        command = with_defaults(self.command, {name: typed[name] for name in typed if name in of_command})
        return command, {name: value for name, value in typed.items() if name not in of_command}

    def resolve(
        self, preset: str = "paper", typed: Mapping[str, Any] | None = None, log_every: int | None = None
    ) -> TrainingSettings:
        """Return the settings of a new run, or of one with this log interval.

        In ascending priority: the defaults of the options, the defaults of the program, the recipe of the network, the
        preset, and the typed options. Except for typed options, those that the network or the data set lacks are
        ignored.
        """
        typed = typed or {}
        defaults = self._tables[self.presets["paper"]]
        table = {} if preset == "paper" else self._tables[self.presets[preset]]
        model = {"model": "identity", **defaults, **table, **typed}["model"]
        recipe = {**self._tables[self.recipes[model]]} if model in self.recipes else {}
        if model in ("resnet", "preresnet") and typed.get("depth", recipe["depth"]) < _WARM_UP_DEPTH:
            recipe["warm_up_steps"] = 0
        return with_defaults(TrainingSettings, defaults, recipe, table, typed).with_log_interval(log_every)

    def settings_to_train(self, command: Any, typed: Mapping[str, Any]) -> tuple[Run, TrainingSettings]:
        """Return the folder and the settings of a new run, or of a run to be resumed.

        Repeating a command resumes its run, as `--resume` does. `ExactResume` rejects settings that differ from those
        of the checkpoint.
        """
        out = command.out or default_out(self.resolve(command.preset, typed), command.preset)
        run = Run(out, overwrites=command.overwrite)
        if command.resume:
            return run, self.saved_settings(run, typed)
        # The folder of another program is not overwritten.
        recorded = recorded_settings(self.name, run) if run.exists() else None
        run.check_usable()
        every = None if recorded is None or run.overwrites else recorded.run.log_every
        return run, self.resolve(command.preset, typed, every)

    def saved_settings(self, run: Run, typed: Mapping[str, Any]) -> TrainingSettings:
        """Return the settings of an existing run, updated with typed settings."""
        return with_defaults(TrainingSettings, as_dict(recorded_settings(self.name, run)), typed).with_log_interval()


def default_out(settings: TrainingSettings, preset: str) -> str:
    """Return the default of --out."""
    name = settings.data.dataset.replace("folder", "imagenet")
    return {"paper": f"runs/{name}", "quick": "runs/quick"}.get(preset, f"runs/{name}-{preset}")
