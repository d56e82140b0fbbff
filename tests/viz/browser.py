"""A headless Chromium that tests look at pages with, spoken to over two pipes (the DevTools protocol)."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.waits import NEVER

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)
# Chromium reads orders from file 3 and writes answers to file 4; `bash` puts the pipes there.
_START = 'exec "$@" 3<&"$ORDERS" 4>&"$ANSWERS"'


class Browser:
    """One page of a browser. Ends with `close`."""

    def __init__(self, folder: Path, width: int = 1400, height: int = 1000) -> None:
        assert CHROMIUM is not None
        orders_out, self._orders = os.pipe()
        self._answers, answers_in = os.pipe()
        command = [CHROMIUM, *_OPTIONS, f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", _START, "bash", *command],
            env={**os.environ, "ORDERS": str(orders_out), "ANSWERS": str(answers_in)},
            pass_fds=(orders_out, answers_in),
            stderr=subprocess.DEVNULL,
        )
        os.close(orders_out)
        os.close(answers_in)
        self._numbers = itertools.count(1)
        self._read = b""
        self._session: str | None = None
        target = self.order("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.order("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.order("Page.enable")
        self.order("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def order(self, method: str, **params: Any) -> dict[str, Any]:
        """Has something done; what it answers."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._send(message)
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found

    def open(self, page: Path | str) -> None:
        """Shows a file or an address, fonts and all."""
        self.order("Page.navigate", url=page if isinstance(page, str) else page.absolute().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass
        self.run("document.fonts.ready.then(() => true)")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        told = self.order("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def click(self, x: float, y: float) -> None:
        """Presses and releases the mouse there, as a person does."""
        for kind in ("mousePressed", "mouseReleased"):
            self.order("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def dark(self, dark: bool) -> None:
        """What the page is told that its reader prefers."""
        value = "dark" if dark else "light"
        self.order("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def picture(self, path: Path) -> None:
        """What is seen, as PNG."""
        path.write_bytes(base64.b64decode(self.order("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._session = None
        self.order("Browser.close")
        self._process.wait(NEVER)
        os.close(self._orders)
        os.close(self._answers)

    def _send(self, message: dict[str, Any]) -> None:
        left = json.dumps(message).encode() + b"\0"
        while left:
            left = left[os.write(self._orders, left) :]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            more = os.read(self._answers, 1 << 16)
            assert more, "the browser has ended"
            self._read += more
        text, self._read = self._read.split(b"\0", 1)
        found: dict[str, Any] = json.loads(text)
        return found
