"""Headless Chromium over its debugging pipe, with the standard library alone: pages, what they say, and screenshots.

    with Chromium(find()) as browser:
        page = browser.open("http://localhost:6006/", width=1400, height=1000)
        page.wait_for("document.title")
        page.screenshot(path)

The commands are those of the Chrome DevTools Protocol; nothing but this machine is reached.
"""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless",
    "--no-sandbox",  # pages of our own, also as root in a container
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1",
)
# Chromium reads its commands from descriptor 3 and answers on descriptor 4.
START = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
# The text of a page with that of its web components, which innerText leaves out.
TEXT = """
(function text(node) {
  let found = node.innerText ?? [...node.children].map(child => child.innerText ?? "").join("\\n");
  for (const element of node.querySelectorAll("*"))
    if (element.shadowRoot) found += "\\n" + text(element.shadowRoot);
  return found;
})(document.body)
"""


def find() -> str | None:
    """The path of a Chromium: the environment's CHROMIUM, else one of the usual names."""
    return next(filter(None, map(shutil.which, (os.environ.get("CHROMIUM", ""), *NAMES))), None)


class Chromium:
    """One browser with a profile of its own, which goes with it."""

    def __init__(self, path: str):
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        command = [path, *OPTIONS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(commands), str(answers), *command],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._number = 0
        self._buffer = b""
        self.errors: list[str] = []  # what the pages' scripts raised

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def call(self, method: str, session: str | None = None, seconds: float = 120, **parameters):
        """The result of a command of the protocol; RuntimeError where the browser refuses it or does not answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if answer.get("method") == "Runtime.exceptionThrown":
                details = answer["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))

    def _receive(self, deadline, method):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise RuntimeError(f"Chromium did not answer {method} in time")
            read = os.read(self._read, 1 << 20)
            if not read:
                raise RuntimeError(f"Chromium ended with exit code {self._process.wait()} during {method}")
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, url: str, width: int, height: int) -> "Page":
        """A page at the given width and height in CSS pixels; narrow ones as on a telephone."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Runtime.enable", session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", session, **size)
        self.call("Page.navigate", session, url=url)
        page = Page(self, session, target)
        page.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")
        return page


class Page:
    """A page of a `Chromium`; made by its `open`."""

    def __init__(self, browser: Chromium, session: str, target: str):
        self._browser, self._session, self._target = browser, session, target

    def evaluate(self, expression: str):
        """The value of a JavaScript expression."""
        result = self._browser.call("Runtime.evaluate", self._session, expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']['exception'].get('description')}")
        return result["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 60):
        """Returns the expression's value once it is true; TimeoutError with the page's text if it never is."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} is not true after {seconds} s. The page says:\n{self.text()[:3000]}")
            time.sleep(0.2)
        return value

    def wait_for_text(self, *texts: str, seconds: float = 60):
        """Waits until the page shows all of the texts."""
        self.wait_for(f"(text => {json.dumps(texts)}.every(each => text.includes(each)))({TEXT})", seconds)

    def text(self) -> str:
        """What the page shows, web components included."""
        return self.evaluate(TEXT)

    def screenshot(self, path: pathlib.Path, whole: bool = False):
        """Writes a PNG of the window, or of the whole page."""
        shot = self._browser.call("Page.captureScreenshot", self._session, format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        """Closes the page."""
        self._browser.call("Target.closeTarget", targetId=self._target)
