"""Headless Chromium over its DevTools protocol: pages are opened, looked at and really clicked."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
]


class Browser:
    """One tab. Requests and errors of its pages are kept."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.requests: list[str] = []
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])

    def view(self, width: int, height: int, *, dark: bool = False, media: str = "") -> None:
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=scheme)

    def open(self, page: Path) -> None:
        """Load a report and wait until it says that it is drawn."""
        self.requests.clear()
        self.errors.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        deadline = time.monotonic() + 60
        while not self.run("document.documentElement?.dataset.ready ?? null"):
            assert time.monotonic() < deadline, f"{page} was not drawn within a minute: {self.errors}"
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.textContent)")

    def click(self, selector: str) -> None:
        x, y = self._point(selector, 0.5, 0.5)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Move the mouse over an element, at a share of its width and height."""
        x, y = self._point(selector, across, down)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def print(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"]))

    def _point(self, selector: str, across: float, down: float) -> tuple[float, float]:
        box = self.run(
            f"""(() => {{
              const node = document.querySelector({json.dumps(selector)});
              node.scrollIntoView({{block: "center", behavior: "instant"}});
              const box = node.getBoundingClientRect();
              return [box.x, box.y, box.width, box.height];
            }})()"""
        )
        return box[0] + across * box[2], box[1] + down * box[3]


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a fresh profile folder, which ends with the block."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # Chromium writes the port that it has chosen.
        port_file = profile / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not (port_file.exists() and len(port_file.read_text().splitlines()) == 2):
            assert process.poll() is None, f"chromium ended with code {process.returncode}"
            assert time.monotonic() < deadline, "chromium did not start within a minute"
            time.sleep(0.05)
        port = port_file.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            tab = next(target for target in json.load(answer) if target["type"] == "page")
        with connect(tab["webSocketDebuggerUrl"], max_size=None, proxy=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(timeout=30)
