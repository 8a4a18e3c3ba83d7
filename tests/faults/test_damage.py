"""Damaged files in a run's folder: the run ends with the same bits all the same, or a sentence says what is wrong."""

import shutil

from tests.faults.conftest import STEPS
from tests.support.processes import assert_same_run, records
from tests.support.programs import run_in_process
from trainers.cifar import main

TRIALS = 4


def cut(content, chance):
    return content[: chance.randrange(len(content) or 1)]


def flip(content, chance):
    changed = bytearray(content)
    for _ in range(3 if content else 0):
        changed[chance.randrange(len(changed))] ^= chance.randrange(1, 256)
    return bytes(changed)


def drop_a_line(content, chance):
    lines = content.splitlines(keepends=True)
    if lines:
        del lines[chance.randrange(len(lines))]
    return b"".join(lines)


def garbage(_content, chance):
    return chance.randbytes(chance.randrange(1, 200))


def a_number(_content, _chance):
    return b"5"


def nothing(_content, _chance):
    return b""


DAMAGE = (cut, flip, drop_a_line, garbage, a_number, nothing)


def test_random_damage(whole, tmp_path, chance, amount, count_faults):
    survived, failures = 0, []
    for number in range(TRIALS * amount):
        run = tmp_path / f"run-{number}"
        shutil.copytree(whole, run)
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
        code, said = run_in_process(main, "--resume", "--out", run)
        trial = f"{path.relative_to(run)}, {how.__name__ if how else 'removed'}: {code} {said}"
        try:
            assert "Traceback" not in said, trial
            if code:
                assert (code in (1, 2), said.count("error: ")) == (True, 1), trial
            elif not finished and path.name != "config.json":
                # What is in config.json may be changed by hand as well.
                assert_same_run(run, whole)
                assert [r["step"] for r in records(run)] == [r["step"] for r in records(whole)], trial
            survived += 1
        except AssertionError as error:
            failures.append(error)
        shutil.rmtree(run)
    count_faults("a damaged or missing file, then --resume", TRIALS * amount, survived)
    assert not failures, failures[0]
