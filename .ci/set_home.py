"""Fill in the address of the repository before a release is built.

    python .ci/set_home.py https://github.com/OWNER/NAME v0.1.0

The repository itself contains no address. This script changes two files in place, and the changes are not committed:

- setup.cfg: `project_urls` receives the source, the documentation, the changelog and the issues.
- README.md: relative links and images become absolute, because PyPI shows the text without the repository. They lead to
  the files of the given tag, in the form that GitHub uses.

The release workflow passes the address and the tag from GitHub's variables.
"""

import argparse
import pathlib
import re
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_RELATIVE_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!\w+:|#|/)([^)\s]+)\)")


def project_urls(home: str, tag: str) -> dict[str, str]:
    """Return the entries of `project_urls` by label."""
    return {
        "Source": home,
        "Documentation": f"{home}/blob/{tag}/docs/index.md",
        "Changelog": f"{home}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


def add_project_urls(config: str, urls: dict[str, str]) -> str:
    """Return the text of setup.cfg with further entries at the head of `project_urls`.

    Raises:
        ValueError: `project_urls` is missing, or it has one of the entries already.
    """
    head, key, rest = config.partition("\nproject_urls =\n")
    present = [label for label in urls if f"\n    {label} = " in config]
    if not key or present:
        raise ValueError(f"setup.cfg must have `project_urls` without the address. Received: {present or 'none'}")
    return head + key + "".join(f"    {label} = {url}\n" for label, url in urls.items()) + rest


def make_links_absolute(text: str, home: str, tag: str) -> str:
    """Return Markdown whose relative links and images lead to the files of a tag. Fenced code stays as it is."""

    def absolute(match):
        image, label, path = match.groups()
        return f"{image}{label}({home}/{'raw' if image else 'blob'}/{tag}/{path})"

    # The fenced blocks are at the odd places.
    parts = _FENCED.split(text)
    return "".join(part if place % 2 else _RELATIVE_LINK.sub(absolute, part) for place, part in enumerate(parts))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("home", help="address of the repository, such as https://github.com/OWNER/NAME")
    parser.add_argument("tag", help="tag of the release, such as v0.1.0")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT, help="folder of setup.cfg and README.md")
    options = parser.parse_args(argv)
    home = options.home.rstrip("/")
    if not home.startswith("https://"):
        parser.error(f"`home` must start with https://. Received: {options.home}")
    config, readme = options.folder / "setup.cfg", options.folder / "README.md"
    config.write_text(add_project_urls(config.read_text(), project_urls(home, options.tag)))
    readme.write_text(make_links_absolute(readme.read_text(), home, options.tag))


if __name__ == "__main__":
    main()
