"""Prints the lowest versions that setup.cfg allows, as constraints for pip: python .ci/lowest_versions.py > FILE"""

import configparser
import pathlib
import re

config = configparser.ConfigParser()
config.read(pathlib.Path(__file__).resolve().parents[1] / "setup.cfg")
extras = config["options.extras_require"]
lines = config["options"]["install_requires"].split() + [line for name in extras for line in extras[name].split()]
for line in dict.fromkeys(lines):
    bound = re.fullmatch(r"([\w-]+)(\[\w+\])?>=([\d.]+)", line)
    if bound:
        print(f"{bound[1]}=={bound[3]}")
