"""Checks in a headless Chromium for `new_user.py`: TensorBoard and the pages of the site."""

import contextlib
import os
import shutil

WIDE, NARROW = (1400, 1000), (390, 844)
# Maximum height of a screenshot in pixels: Chromium sometimes fails on taller ones.
TALLEST = 10_000
# Sources of the images that have not been loaded.
MISSING = "[...document.images].filter(each => !each.naturalWidth).map(each => each.getAttribute('src'))"


def find_chromium():
    """Return the path of a Chromium, from the variable CHROMIUM or by one of the usual names, or None."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, (os.environ.get("CHROMIUM", ""), *names))), None)


@contextlib.contextmanager
def chromium(path):
    """Start a headless browser without access to the network."""
    # Part of the extra `dev`; the short form for CI does not need it.
    from playwright.sync_api import sync_playwright

    alone = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1"
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=path, args=[alone]) as browser:
        yield browser


@contextlib.contextmanager
def visit(browser, url, size, faults):
    """Open a page. Errors of its scripts are added to `faults`."""
    width, height = size
    page = browser.new_page(viewport={"width": width, "height": height}, is_mobile=width < 600)
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: faults.append(f"{url}: {error}"))
    page.goto(url)
    yield page
    page.close()


def check_tensorboard_pages(browser, address, keep):
    """Save screenshots of three pages of TensorBoard, after their curves, images and settings have appeared.

    Args:
        browser: browser of `chromium`.
        address: address of TensorBoard.
        keep: folder for the screenshots.
    """
    faults = []
    drawn = "document.querySelectorAll('card-view tb-data-table-content-row').length >= 2"
    for name, fragment, texts, ready in (
        ("scalars", "timeseries", ("loss", "top1_error"), drawn),
        ("images", "images", ("training_images",), "true"),
        ("hparams", "hparams", ("best test error", "learning_rate"), "true"),
    ):
        with visit(browser, f"{address}/#{fragment}", WIDE, faults) as page:
            for text in texts:
                page.get_by_text(text).locator("visible=true").first.wait_for()
            page.wait_for_function(f"{ready} && !document.querySelector('mat-spinner')")
            # Curves and images are drawn shortly after they have been received.
            page.wait_for_timeout(2000)
            page.screenshot(path=keep / f"tensorboard-{name}.png")
    if faults:
        raise SystemExit("\n".join(faults))


def check_site(browser, site, keep):
    """Check and photograph all pages of the site at 1,400 and 390 pixels. Return their number.

    A page is at fault if it is wider than the screen, if an image is missing, or if a script fails.

    Args:
        browser: browser of `chromium`.
        site: folder of the built site.
        keep: folder for the screenshots, site-PAGE-WIDTH.png.

    Raises:
        SystemExit: the list of all faults.
    """
    pages = [path for path in sorted(site.rglob("*.html")) if not {"_modules", "_static"} & set(path.parts)]
    faults = []
    for path in pages:
        name = path.relative_to(site)
        for size in (WIDE, NARROW):
            with visit(browser, path.as_uri(), size, faults) as page:
                width, height = page.evaluate(
                    "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
                )
                if width > size[0]:
                    faults.append(f"{name} overflows: {width} pixels wide on a screen of {size[0]}")
                faults += [f"{name}: the image {source} is missing" for source in page.evaluate(MISSING)]
                shot = "-".join(name.with_suffix("").parts)
                clip = {"x": 0, "y": 0, "width": width, "height": min(height, TALLEST)}
                page.screenshot(path=keep / f"site-{shot}-{size[0]}.png", full_page=True, clip=clip)
    if faults:
        raise SystemExit("\n".join(faults))
    return len(pages)
