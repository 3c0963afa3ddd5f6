"""A headless Chromium that a test drives through the DevTools protocol."""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import websocket

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; install chromium to run this test")
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--remote-debugging-port=0", "--remote-allow-origins=*",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """One browser for a module."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        started = Browser(Path(folder))
        yield started
        started.close()


class Browser:
    """One page of a browser with a profile folder of its own. requests: addresses that pages asked for."""

    def __init__(self, folder: Path):
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._number, self._loaded = 0, False
        port = folder / "DevToolsActivePort"
        until = time.monotonic() + 300
        while not port.is_file() or not port.read_text().strip():
            assert self.process.poll() is None and time.monotonic() < until, "Chromium does not start"
            time.sleep(0.05)
        address = f"http://127.0.0.1:{port.read_text().split()[0]}/json"
        with urlopen(address) as answer:
            (page,) = (one for one in json.load(answer) if one["type"] == "page")
        self._socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=300)
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """End it."""
        with suppress(Exception):
            self.send("Browser.close")
        self._socket.close()
        self.process.wait(timeout=60)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What a command answers. Events that come before are noted."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while (answer := self._received()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file in a window of some size; returns when all of it is there."""
        self.requests.clear()
        self.errors.clear()
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=theme)
        self.resize(width, height)
        self._loaded = False
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._received()

    def resize(self, width: int, height: int = 900) -> None:
        """Give the window another size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def evaluate(self, script: str) -> Any:
        """The value of an expression of JavaScript, awaited if it is a promise."""
        about = {"expression": script, "returnByValue": True, "awaitPromise": True}
        found = self.send("Runtime.evaluate", **about)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{place}.scrollIntoView({{block: 'center'}})")
        x, y = self.evaluate(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({place}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def press(self, key: str) -> None:
        """Press a key where the focus is."""
        text = {"text": {"Enter": "\r"}.get(key, key)} if key in (" ", "Enter") else {}
        code = {" ": "Space"}.get(key, key)
        virtual = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, " ": 32, "Tab": 9, "Enter": 13}
        for kind in ("keyDown", "keyUp"):
            about = {"key": key, "code": code, "windowsVirtualKeyCode": virtual[key]} | (
                text if kind == "keyDown" else {}
            )
            self.send("Input.dispatchKeyEvent", type=kind, **about)

    def _received(self) -> dict[str, Any]:
        message = json.loads(self._socket.recv())
        self._loaded |= message.get("method") == "Page.loadEventFired"
        parameters = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        return message
