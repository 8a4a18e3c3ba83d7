"""Train one run for each seed and each combination of options, and compare the runs."""

import dataclasses
import importlib
import itertools
import os
import pathlib
import signal
import sys
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from idmatters_tf._environment import cores
from trainers.cli.arguments import Parser, UsageError, suggest
from trainers.cli.settings import Option, add_options, options, parse, setting, with_defaults
from trainers.cli.startup import print_message, run_program
from trainers.cli.text import program_command
from trainers.launch import Processes, add_command, as_module, check_program, split_command
from trainers.run.folder import Run
from trainers.training.program import split
from trainers.training.settings import Settings as TrainingSettings
from trainers.training.task import Task

EXAMPLES = """
examples:
  python -m trainers.sweep -- cifar --preset quick                                  three seeds
  python -m trainers.sweep --vary initializer=identity,standard --seeds 0 1 2 3 4 \\
      --out runs/starts -- cifar --preset quick --clip-norm 1                       ten runs
  python -m trainers.sweep --vary "widths=16 32 64,32 64 128" nesterov=true,false --dry-run -- cifar --preset quick
  python -m trainers.sweep --jobs 4 --seeds 0 1 2 3 -- cifar --preset quick         four at once

Each run is written to a folder in --out, named after its options and seed. The same command resumes an interrupted
sweep and skips finished runs. A run that diverges or fails does not stop the others. At the end, trainers.report
compares the runs, with mean and standard deviation over the seeds, in the folder report in --out.

exit codes: 0 done; 1 a run failed; 2 bad input; 130, 143 stopped by Ctrl-C, SIGTERM, the runs in progress saved
"""
# Options that the sweep sets itself, or that do not train.
_OWN = ("out", "seed", "resume", "evaluate", "export_only", "overwrite")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the sweep."""

    seeds: tuple[int, ...] = setting((0, 1, 2), help="seeds of each combination", at_least=0, at_most=2**31 - 1)
    vary: tuple[str, ...] = setting(
        (),
        help="options with comma-separated values; spaces separate several numbers of one value, and the values of "
        "flags are true and false",
        metavar="OPTION=VALUE,VALUE",
        may_be_empty=True,
    )
    jobs: int = setting(
        1,
        help="number of runs at a time, each on its own share of the cores; at most the number of cores",
        at_least=1,
        at_most=1024,
    )
    out: str = setting("runs/sweep", help="folder of the runs", metavar="DIR")
    format: Literal["png", "svg", "pdf"] = setting("png", help="format of the convergence plot")
    dry_run: bool = setting(False, help="print the commands without running them")
    debug: bool = setting(False, help="show tracebacks")

    def __post_init__(self) -> None:
        if len(set(self.seeds)) < len(self.seeds):
            raise UsageError(f"--seeds must all be different. Received: {' '.join(map(str, self.seeds))}")


def parser() -> Parser:
    """Return the command line of this program."""
    program = "python -m trainers.sweep"
    usage = f"{program} [OPTIONS] -- PROGRAM ..."
    parser = Parser(prog=program, usage=usage, description=__doc__, epilog=EXAMPLES)
    add_options(parser, Settings)
    add_command(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    typed = parse(parser(), argv)
    command = split_command(typed.pop("command"))
    settings = with_defaults(Settings, typed)
    check_program(command[0] if command else "nothing")
    runs = list_runs(command[0], command[1:], settings)
    if settings.dry_run:
        for arguments in runs.values():
            print(program_command(f"trainers.{command[0]}", *arguments))
        return 0
    jobs = min(settings.jobs, cores())
    if jobs < settings.jobs:
        print_message(f"--jobs {settings.jobs}: reduced to {jobs}, the number of cores")
    codes, received = _train(command[0], runs, jobs)
    if 2 in codes.values():
        return 2
    if received is not None:
        same = program_command("trainers.sweep", *(sys.argv[1:] if argv is None else argv))
        finished = sum(code == 0 for code in codes.values())
        print_message(f"stopped by {received.name} with {finished} of {len(runs)} runs finished. To resume: {same}")
        return 128 + received
    return _report(settings, runs, [name for name in runs if codes[name]])


def list_runs(program: str, arguments: Sequence[str], settings: Settings) -> dict[str, list[str]]:
    """Return the runs of a sweep.

    Args:
        program: "cifar" or "imagenet".
        arguments: options of all runs.
        settings: settings of the sweep.

    Returns:
        The arguments of each run, including `--out`, by its name.

    Raises:
        UsageError: a value or a combination is invalid.
    """
    module = importlib.import_module(f"trainers.{program}")
    task = _task(module)
    _, shared = _check_run(task, module.parser(), arguments)
    taken = [name for name in _OWN if name in shared]
    if taken:
        raise UsageError(
            f"--{taken[0].replace('_', '-')} must not be among the options after --. Pass --seeds and --out to the "
            f"sweep instead."
        )
    varied = [_parse_values(each) for each in settings.vary]
    names = [option.name for option, _ in varied]
    for name in names:
        if names.count(name) > 1 or name in shared:
            raise UsageError(f"--{name.replace('_', '-')} is given twice. Pass it either to --vary or after --, once.")
    runs = {}
    for chosen in itertools.product(*(values for _, values in varied)):
        of_combination, words = [], list(arguments)
        for (option, _), value in zip(varied, chosen, strict=True):
            of_combination.append(f"{option.name.replace('_', '-')}-{value.replace(' ', '-').replace('/', '-')}")
            words += _as_typed(option, value)
        # Check all combinations before the first run.
        _check_run(task, module.parser(), words)
        for seed in settings.seeds:
            name = "-".join([*of_combination, f"seed-{seed}"])
            folder = pathlib.Path(settings.out) / name
            runs[name] = [*words, "--seed", str(seed), "--out", str(folder)]
    return runs


def _task(module: types.ModuleType) -> type[Task]:
    (found,) = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Task) and value is not Task
    ]
    return found


def _check_run(task: type[Task], parser: Parser, arguments: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return (settings, options of the command line) of a run's arguments."""
    typed = parse(parser, arguments)
    command, of_run = split(task, typed)
    return task.resolve(task.presets.get(getattr(command, "preset", ""), {}), of_run), typed


def _parse_values(text: str) -> tuple[Option, list[str]]:
    """Return (option, values) of OPTION=VALUE,VALUE."""
    name, equals, values = text.partition("=")
    option = options(TrainingSettings).get(name.strip().lstrip("-").replace("-", "_"))
    if option is None:
        flag = f"--{name.strip().lstrip('-')}"
        hint = suggest(flag.replace("_", "-"), [known.flag for known in options(TrainingSettings).values()])
        raise UsageError(f"--vary {text}: there is no option {flag}.{hint}")
    found = [value.strip() for value in values.split(",")]
    if not equals or not all(found) or len(set(found)) < len(found):
        raise UsageError(f"--vary {text}: expected OPTION=VALUE,VALUE, all different.")
    if option.name == "seed":
        raise UsageError("--vary seed=...: pass the seeds as --seeds.")
    if option.kind is bool and not set(found) <= {"true", "false"}:
        raise UsageError(f"--vary {text}: {option.flag} is a flag: its values are true and false.")
    return option, found


def _as_typed(option: Option, value: str) -> list[str]:
    if option.kind is not bool:
        return [option.flag, *(value.split() if option.many else [value])]
    return [option.flag if value == "true" else f"--no-{option.flag[2:]}"]


def _train(program: str, runs: Mapping[str, Sequence[str]], jobs: int) -> tuple[dict[str, int], signal.Signals | None]:
    """Train the runs in separate processes, `jobs` at a time. A usage error (exit code 2) stops all runs.

    Returns:
        Exit codes by name, and the signal that has stopped the runs in progress, or None.
    """
    waiting, free = list(runs), divide_cores(jobs)
    in_progress: dict[str, list[int] | None] = {}
    codes: dict[str, int] = {}
    processes = Processes()
    with processes.forwarding_signals() as handler:
        while True:
            if waiting and free and handler.received is None and 2 not in codes.values():
                name = waiting.pop(0)
                print_message(f"run {len(runs) - len(waiting)} of {len(runs)}: {name}")
                in_progress[name] = free.pop(0)
                processes.start(name, as_module([f"trainers.{program}", *runs[name]]), cores=in_progress[name])
                continue
            if not in_progress:
                break
            ended = processes.collect_ended()
            if 2 in ended.values() and 2 not in codes.values():
                # Sent once: a second signal would end the runs before they save.
                processes.send(signal.SIGTERM)
            free += [in_progress.pop(name) for name in ended]
            codes |= ended
            time.sleep(0.05)
    processes.close()
    return codes, handler.received


def divide_cores(jobs: int) -> list[list[int] | None]:
    """Return the cores of each job, an even division of those of this process; None for all cores."""
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return [None] * jobs
    available = sorted(os.sched_getaffinity(0))
    bounds = [len(available) * number // jobs for number in range(jobs + 1)]
    return [available[first:last] for first, last in itertools.pairwise(bounds)]


def _report(settings: Settings, runs: Mapping[str, Sequence[str]], failed: Sequence[str]) -> int:
    """Compare the runs with results, and return the exit code of the sweep."""
    from trainers import report

    folders = {name: Run(pathlib.Path(settings.out) / name) for name in runs}
    kinds = {
        name: {record["kind"] for record in run.metrics()} if run.exists() else set() for name, run in folders.items()
    }
    shown = [name for name, found in kinds.items() if found & {"test", "diverged"}]
    if any("test" in found for found in kinds.values()):
        paths = [str(folders[name].path) for name in shown]
        out = str(pathlib.Path(settings.out) / "report")
        report.main([*paths, "--out", out, "--title", settings.out, "--format", settings.format])
    broken = [name for name in failed if "diverged" not in kinds[name]]
    if failed:
        diverged = len(failed) - len(broken)
        print_message(
            f"{diverged} of {len(runs)} runs diverged, {len(broken)} failed" + (f": {broken[0]}" if broken else "")
        )
    return 1 if broken else 0


if __name__ == "__main__":
    run_program(main)
