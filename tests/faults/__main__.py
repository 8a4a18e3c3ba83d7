"""Fault injection from a seed: `make faults FAULTS=50 SEED=0`.

A journal records each trial. After an interruption the same command continues with the next trial. At the end a table
lists the faults tried and survived of each kind.
"""

import argparse
import datetime
import os
import pathlib
import platform
import shutil
import signal
import sys

from tests.faults.bench import Bench
from tests.faults.fits import by_source
from tests.faults.kinds import KINDS, attempt, wanted
from tests.faults.tally import Journal, table

# Markers around a table of a page.
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"


def main(argv: list[str]) -> int:
    """Run the program. Return 0 if all faults were survived, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--faults", type=int, default=50, metavar="N", help="number of faults (default: 50: 100 SIGKILLs, ...)"
    )
    parser.add_argument("--seed", default="0", help="seed of the random choices (default: 0)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=" ".join(KINDS))
    parser.add_argument("--folder", type=pathlib.Path, help="for the journal (default: build/faults/SEED)")
    parser.add_argument(
        "--write",
        type=pathlib.Path,
        metavar="FILE",
        help="write the table into this page without new trials: docs/reference/results/reliability.md or resume.md",
    )
    parser.add_argument("--hardware", help="description of the machine for the page")
    options = parser.parse_args(argv)
    folder = options.folder or pathlib.Path("build") / "faults" / options.seed
    journal = Journal(folder / "journal.jsonl")
    if options.write is not None:
        unfinished = [name for name in KINDS if journal.total([name]).tried < wanted(name, options.faults)]
        _write(options.write, journal, unfinished, options)
        return 0
    # A shell that starts the program in the background ignores Ctrl-C for it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    bench = Bench((folder / f"work-{os.getpid()}").resolve())
    try:
        for name in options.kinds:
            attempt(name, bench, options.seed, wanted(name, options.faults), journal, _report)
    except KeyboardInterrupt:
        _report("stopped; the same command continues")
        return 130
    finally:
        bench.close()
    shutil.rmtree(bench.folder)
    total = journal.total(options.kinds)
    print(table(total), *total.notes, f"{total.cpu_seconds / 60:.1f} minutes of CPU", sep="\n")
    return int(bool(total.failures))


def _report(text: str) -> None:
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


def _write(page: pathlib.Path, journal: Journal, unfinished: list[str], options: argparse.Namespace) -> None:
    """Replace the tables on a page: `faults` lists all kinds, `fits` the fits by training data."""
    hardware = options.hardware or f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}"
    date = datetime.date.today()

    def circumstances(kinds=()):
        left = [name for name in unfinished if name in (kinds or KINDS)]
        stopped = f" (stopped before the end of {', '.join(left)})" if left else ""
        chosen = f' KINDS="{" ".join(kinds)}"' if kinds else ""
        command = f"`make faults FAULTS={options.faults} SEED={options.seed}{chosen}`{stopped}"
        minutes = sum(journal.total([name]).cpu_seconds for name in kinds or KINDS) / 60
        return f"{command}, {date.day} {date:%B %Y}, {hardware}; {minutes:.0f} minutes of CPU:"

    total = journal.total(KINDS)
    notes = "".join(f"\n\nLong run: {note}." for note in total.notes)
    fits = [name for name in KINDS if name.startswith("fit-")]
    tables = {
        "faults": f"{circumstances()}\n\n{table(total)}{notes}",
        "fits": f"{circumstances(fits)}\n\n{by_source(total)}",
    }
    text, found = page.read_text(encoding="utf-8"), False
    for name, content in tables.items():
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        if after:
            text, found = f"{before}{begin}\n{content}\n{end}{after}", True
    if not found:
        raise ValueError(f"{page} lacks {BEGIN.format('faults')} and {END.format('faults')}")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
