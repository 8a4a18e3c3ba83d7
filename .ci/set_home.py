"""Fill in the address of the repository before a release is built; the changes are not committed.

    python .ci/set_home.py https://github.com/OWNER/NAME v0.1.0

`project_urls` in setup.cfg receives the source and the issues, and README.md the commands that clone the repository.
Relative links there become absolute, because PyPI shows the text without the repository.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEY = "\nproject_urls =\n"
HERE = "Not on a package index yet. In this folder, with Python 3.11 or newer:\n\n```\n"


def main(home, tag):
    config, readme = ROOT / "setup.cfg", ROOT / "README.md"
    urls = f"    Source = {home}\n    Issues = {home}/issues\n"
    config.write_text(config.read_text().replace(KEY, KEY + urls))

    def absolute(match):
        image, label, path = match.groups()
        return f"{image}{label}({home}/{'raw' if image else 'blob'}/{tag}/{path})"

    links = r"(!?)(\[[^\]]*\])\((?!\w+:|#|/)([^)\s]+)\)"
    # The fenced blocks are at the odd places.
    before, here, after = readme.read_text().partition(HERE)
    if not here:
        raise SystemExit(f"error: README.md lacks the text {HERE}")
    clone = f"git clone {home} idmatters_tf\ncd idmatters_tf\n"
    text = f"{before}With Python 3.11 or newer:\n\n```\n{clone}{after}"
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    readme.write_text("".join(part if n % 2 else re.sub(links, absolute, part) for n, part in enumerate(parts)))


if __name__ == "__main__":
    main(*sys.argv[1:])
