"""Programs and Python blocks of a page, run one after the other in one process.

`python -m tests.support.steps FOLDER FILE`, where the file contains a JSON list of steps: ["program", MODULE,
ARGUMENTS], ["script", CODE] with names of its own, or ["python", CODE] with the names of the blocks before it.
"""

import importlib
import json
import os
import pathlib
import sys


def main(argv):
    folder, file = argv
    steps, namespace = json.loads(pathlib.Path(file).read_text()), {}
    os.chdir(folder)
    for kind, *step in steps:
        print(kind, *step, sep="\n", flush=True)
        if kind == "program":
            code = importlib.import_module(step[0]).main(step[1])
            assert code == 0, f"{step} ended with exit code {code}"
        else:
            exec(compile(step[0], kind, "exec"), {"__name__": "__main__"} if kind == "script" else namespace)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
