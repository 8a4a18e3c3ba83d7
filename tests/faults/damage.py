"""Damaged files in the folder of a run: the run ends with the same bits, or with an error message."""

import random
import shutil

from tests.faults.bench import STEPS, Bench
from tests.faults.tally import Tally
from tests.support.processes import records

ROW = "damaged or missing file, then `--resume`"


def cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) or 1)]


def flip(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(3 if content else 0):
        changed[chance.randrange(len(changed))] ^= chance.randrange(1, 256)
    return bytes(changed)


def drop_a_line(content: bytes, chance: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if lines:
        del lines[chance.randrange(len(lines))]
    return b"".join(lines)


def garbage(_content: bytes, chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(1, 200))


def a_number(_content: bytes, _chance: random.Random) -> bytes:
    return b"5"


def nothing(_content: bytes, _chance: random.Random) -> bytes:
    return b""


DAMAGE = (cut, flip, drop_a_line, garbage, a_number, nothing)


def damage(bench: Bench, chance: random.Random, most: int) -> Tally:
    """Damage or remove one file of a run that lacks its last checkpoint, then resume the run."""
    tally, run = Tally(), bench.place("damaged")
    shutil.copytree(bench.whole.run, run)
    shutil.rmtree(run / "checkpoints" / f"step-{STEPS:08d}")
    if chance.random() < 0.8:
        (run / "result.json").unlink()
    files = sorted(path for path in run.rglob("*") if path.is_file() and "saved_model" not in path.parts)
    path, how = chance.choice(files), chance.choice([*DAMAGE, None])
    if how is None:
        path.unlink()
    else:
        path.write_bytes(how(path.read_bytes(), chance))
    finished = (run / "result.json").exists()
    process = bench.start("trainers.cifar", "--resume", "--out", run)
    code, said = process.wait(), process.said()
    wrong = ""
    try:
        assert "Traceback" not in said, said
        if code:
            assert (code in (1, 2), said.count("error: ")) == (True, 1), said
        elif not finished and path.name != "config.json":
            # Settings in config.json may be edited by hand, so a changed value is valid.
            bench.whole.check_same(run)
            assert [r["step"] for r in records(run)] == [r["step"] for r in records(bench.whole.run)]
    except AssertionError as error:
        wrong = f"{path.relative_to(run)}, {how.__name__ if how else 'removed'}: {code} {error}"
    tally.count(ROW, 1, not wrong, wrong)
    return tally
