"""Check the links of the built site: `python .ci/check_links.py build/site`. Links to other sites are not opened."""

import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    """Targets and anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.links += [given[name] for name in ("href", "src") if given.get(name)]


def main(folder):
    pages = {path: Page(path) for path in sorted(folder.resolve().rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            name = urllib.parse.unquote(parts.path)
            target = (path.parent / name).resolve() if name else path
            anchor = urllib.parse.unquote(parts.fragment)
            if not target.is_file() or (target in pages and anchor not in pages[target].anchors):
                broken.append(f"{path.relative_to(folder.resolve())}: {link}")
    print(*dict.fromkeys(broken), f"{len(pages)} pages, {len(set(broken))} broken links", sep="\n")
    return 1 if broken or not pages else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
