"""Headless Chromium over the DevTools protocol's own pipe: no driver and no library beside the browser.

Debian and Ubuntu: ``apt-get install chromium``. Another browser of the family: CRU_BROWSER=/path/to/it.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = [
    "--headless=new",
    "--no-sandbox",  # the page is our own, and containers run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
]


def binary() -> str:
    """The browser, or a skipped test that says how to get one."""
    named = os.environ.get("CRU_BROWSER")
    found = named or next((path for name in NAMES if (path := shutil.which(name))), None)
    if not found:
        pytest.skip("no Chromium here: install it (Debian: apt-get install chromium) or name one in CRU_BROWSER")
    return found


def _pipe() -> list[int]:
    """The ends of a pipe, away from the numbers that the browser is given."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends]
    for end in ends:
        os.close(end)
    return high


class Browser:
    """One page of a headless browser. Collects everything that a healthy page never does."""

    def __init__(self, folder: Path) -> None:
        to_browser, self._out = _pipe()
        self._in, from_browser = _pipe()
        words = [binary(), *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
        # The protocol is spoken on the descriptors 3 and 4; the shell puts ours there.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser} {to_browser}<&- {from_browser}>&-'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; what happens meanwhile is noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self, patience: float = 60.0) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], patience)
            assert ready, "the browser does not answer"
            piece = os.read(self._in, 1 << 16)
            assert piece, "the browser has gone"
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def set_viewport(self, *, width: int = 1200, height: int = 900, dark: bool = False, phone: bool = False) -> None:
        """The window, before a page is opened."""
        scale = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path) -> None:
        """Open a file from disk and wait until it is drawn."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + 60
        while not self.run("document.readyState === 'complete' && document.documentElement.dataset.drawn === 'true'"):
            assert time.monotonic() < until, f"the page was not drawn: {self.complaints}"
            time.sleep(0.02)
        self.frame()

    def frame(self) -> None:
        """Wait for two frames, so that what was asked for has been laid out."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A real event of the mouse: mouseMoved, mousePressed, mouseReleased."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector: str) -> None:
        """Scroll to an element and click in its middle, as a hand would."""
        place = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, place["x"], place["y"], button="left", clickCount=1)
        self.frame()

    def place(self, selector: str) -> dict[str, float]:
        """The middle, the left and the right edge of an element that is in sight."""
        return self.run(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)}); "
            "node.scrollIntoView({block: 'center'}); const r = node.getBoundingClientRect(); "
            "return {x: r.x + r.width / 2, y: r.y + r.height / 2, left: r.left, right: r.right, top: r.top}; })()"
        )

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """End the browser."""
        self.process.terminate()
        self.process.wait(timeout=20)
        os.close(self._out)
        os.close(self._in)


def check_small_screen_and_dark_mode(page: Any, path: Path) -> None:
    """Check that a page fits the screen of a phone, and follows the colours of the system."""
    colour = "getComputedStyle(document.body).backgroundColor"
    page.set_viewport(width=390, height=800, phone=True)
    page.open(path)
    assert page.run("document.documentElement.scrollWidth") == 390
    light = page.run(colour)
    page.set_viewport(dark=True)
    page.open(path)
    assert light == "rgb(255, 255, 255)" and page.run(colour) != light
