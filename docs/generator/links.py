"""Conversion of links to repository files into links to their generated pages.

Committed pages link to the files, which can be opened on GitHub. On the site these links lead to the generated pages.
"""

import re

from generator import FOLDER

# Pattern of the file and the generated page that replaces it on the site.
_RULES = (
    (r"trainers/reproduce/rows/([\w.-]+)\.toml", r"ledger/\2"),
    (r"trainers/reproduce/rows", "ledger/index"),
    (r"trainers/(cifar|expressivity|imagenet|launch|predict|report)\.py", r"commands/\2"),
    (r"trainers/(landscape|reproduce|shortcuts)/__main__\.py", r"commands/\2"),
    (r"trainers", "commands/index"),
    (r"(examples|benchmarks)/(\w+)\.(?:py|ipynb)", r"\2/\3"),
    (r"examples(?:/README\.md)?", "../reference/examples"),
    (r"benchmarks(?:/README\.md)?", "../reference/benchmarks"),
    (r"(model_cards/[\w-]+)/README\.md", r"\2"),
    (r"CONTRIBUTING\.md", "../reference/contributing"),
)


def to_pages(text: str) -> str:
    """Return the Markdown of a page in docs/ or below with links to generated pages instead of their sources."""
    for pattern, page in _RULES:
        text = re.sub(rf"\]\(\.\./((?:\.\./)*){pattern}\)", rf"](\1{FOLDER}/{page}.md)", text)
    return text


def from_folder(text: str, folder: str) -> str:
    """Return FOLDER/README.md, which a page in docs/reference/ includes, with links to the pages of scripts."""
    return re.sub(r"\]\((\w+)\.(?:py|ipynb)\)", rf"](../{FOLDER}/{folder}/\1.md)", text)
