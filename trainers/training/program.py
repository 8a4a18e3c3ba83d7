"""Training programs: command line, and settings of new and of existing runs."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence

from trainers.backends import has_tensorflow, import_tensorflow, require_packages
from trainers.cli.settings import Parser, as_dict, make_parser, options, with_defaults
from trainers.cli.startup import print_lines, print_message, print_warnings
from trainers.run.folder import Run, describe_result, hold_lock
from trainers.training.settings import Command, Task, TrainingSettings, recorded_settings


@dataclasses.dataclass(frozen=True)
class Program:
    """A training program."""

    name: str  # module, for messages and config.json, such as "trainers.cifar"
    description: str | None  # in the help
    epilog: str  # end of the help
    command: type[Command]  # options of the command, including `--preset`
    presets: Mapping[str, Mapping[str, object]]  # settings by value of `--preset`; "paper": defaults of the program
    recipes: Mapping[str, Mapping[str, object]]  # settings by value of `--model`

    def parser(self, only_common: bool = False) -> Parser:
        """Return the parser of the command line, whose help shows the paper's recipe as defaults.

        With `only_common`, the help lists common options only.
        """
        defaults = as_dict(self.resolve())
        settings = TrainingSettings, self.command
        parser = make_parser(
            self.name, self.description, self.epilog, *settings, defaults=defaults, only_common=only_common
        )
        parser.usage = f"{parser.prog} [OPTIONS]"
        parser.add_argument("--help-all", action="help", help="show all options and exit")
        return parser

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Train, evaluate or export according to the command line. Returns the exit code."""
        argv = sys.argv[1:] if argv is None else argv
        command, typed = self.split(self.parser(only_common="--help-all" not in argv).parse(argv))
        existing = command.evaluate or command.export_only
        if existing:
            run = Run(existing)
            task = Task(self.name, self.saved_settings(run, typed), run)
            if command.evaluate:
                # Before TensorFlow is imported, so that missing files are reported at once.
                _ = task.data
            import_tensorflow()
            from trainers.training.train import evaluate, export_newest

            if command.evaluate:
                evaluate(task)
            else:
                with hold_lock(run.path):
                    export_newest(task)
            return 0
        require_packages("matplotlib", *(["tensorboard"] if has_tensorflow() else []))
        run, settings = self.settings_to_train(command, typed)
        return start(Task(self.name, settings, run))

    def split(self, typed: Mapping[str, object]) -> tuple[Command, dict[str, object]]:
        """Split typed options into (command, settings)."""
        of_command = options(self.command)
        command = with_defaults(self.command, {name: typed[name] for name in typed if name in of_command})
        return command, {name: value for name, value in typed.items() if name not in of_command}

    def resolve(self, preset: str = "paper", typed: Mapping[str, object] | None = None) -> TrainingSettings:
        """Return the settings of a new run.

        In ascending priority: the defaults of the options, the defaults of the program, the recipe of the network, the
        preset, and the typed options. Except for typed options, those that the network or the data set lacks are
        ignored.
        """
        typed = typed or {}
        defaults = self.presets["paper"]
        table = {} if preset == "paper" else self.presets[preset]
        model = str({"model": "identity", **defaults, **table, **typed}["model"])
        return with_defaults(TrainingSettings, defaults, self.recipes.get(model, {}), table, typed)

    def settings_to_train(self, command: Command, typed: Mapping[str, object]) -> tuple[Run, TrainingSettings]:
        """Return the folder and the settings of a new run, or of a run to be resumed.

        Repeating a command resumes its run, as `--resume` does. `ExactResume` rejects settings that differ from those
        of the checkpoint.
        """
        run = Run(command.out or default_out(self.resolve(command.preset, typed), command.preset))
        if command.resume:
            return run, self.saved_settings(run, typed)
        if run.exists():
            # Neither the folder of another program nor that of an earlier version is used.
            recorded_settings(self.name, run)
        run.check_usable()
        return run, self.resolve(command.preset, typed)

    def saved_settings(self, run: Run, typed: Mapping[str, object]) -> TrainingSettings:
        """Return the settings of an existing run, updated with typed settings."""
        return with_defaults(TrainingSettings, as_dict(recorded_settings(self.name, run)), typed)


def start(task: Task) -> int:
    """Train unless the run is finished, as one of the tasks of a cluster if there is one. Returns the exit code."""
    run = task.run
    if _is_finished(task):
        return 0
    from idmatters_tf.checkpointing import describe_newest
    from idmatters_tf.distribute import explain_lost_tasks, find_cluster
    from idmatters_tf.distribute.tasks import wait_for_tasks
    from trainers.cluster import PATIENCE, serve

    cluster = find_cluster()
    task.check_cluster(cluster)
    # Only the chief writes to the folder.
    run.writes = cluster is None or cluster.is_chief
    advice = functools.partial(describe_newest, run.checkpoints_path)
    with hold_lock(run.path) if run.writes else contextlib.nullcontext(), explain_lost_tasks(cluster, advice):
        if cluster is None:
            # Before TensorFlow is imported, so that missing files are reported at once.
            _ = task.data
        import_tensorflow()
        if cluster is not None:
            if cluster.asynchronous and not cluster.is_chief:
                return serve(cluster)
            wait_for_tasks(cluster, PATIENCE, print_message)
        from trainers.training.train import train

        with print_warnings():
            return train(task, cluster)


def _is_finished(task: Task) -> bool:
    """Return True, after a message, if the run has its result and the same settings."""
    run, result = task.run, task.run.result()
    # `ExactResume` names the differences.
    if result is None or recorded_settings(task.program, run).identity("", "") != task.settings.identity("", ""):
        return False
    print_lines(f"{run.path} is finished. {describe_result(result)} Use another --out for a new run.")
    return True


def default_out(settings: TrainingSettings, preset: str) -> str:
    """Return the default of --out."""
    name = settings.data.dataset.replace("folder", "imagenet")
    return {"paper": f"runs/{name}", "quick": "runs/quick"}.get(preset, f"runs/{name}-{preset}")
