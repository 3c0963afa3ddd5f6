"""A stand-in for the model hub: as much of its HTTP as `huggingface_hub` needs to send and fetch a dataset's files."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub(ThreadingHTTPServer):
    """One repository. files: what is in it; sent, fetched: paths in the order in which they went, with repetitions;
    commits_left: after so many it answers no more, and says so by `stopped`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.sent: list[str] = []
        self.fetched: list[str] = []
        self.commits_left = 1000
        self.stopped = threading.Event()

    @property
    def url(self) -> str:
        """Its address, for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def commit(self) -> str:
        """Forty hexadecimal digits for its files."""
        return hashlib.sha1(json.dumps(sorted(map(oid, self.files.values()))).encode()).hexdigest()


def oid(content: bytes) -> str:
    """As git names a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """What the hub answers."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *about: object) -> None:
        """Nothing."""

    def do_POST(self) -> None:
        """Create the repository, say how files are to be sent, take a commit."""
        size = self.headers["Content-Length"]
        body = self.rfile.read(int(size)) if size else self.chunks()
        if self.path == "/api/repos/create":
            self.answer({"url": f"{self.server.url}/datasets/owner/name"})
        elif "/preupload/" in self.path:
            about = {"uploadMode": "regular", "shouldIgnore": False}
            self.answer({"files": [about | {"path": one["path"]} for one in json.loads(body)["files"]]})
        elif "/commit/" in self.path:
            if not self.server.commits_left:
                self.server.stopped.set()
                threading.Event().wait(60)  # who sends this is killed meanwhile; nobody is left to answer
                self.close_connection = True
                return
            self.server.commits_left -= 1
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                    self.server.sent.append(line["value"]["path"])
            address = f"{self.server.url}/datasets/owner/name/commit/1"
            self.answer({"success": True, "commitOid": self.server.commit, "commitUrl": address})

    def do_GET(self) -> None:
        """Say what there is, give a file."""
        path = unquote(urlsplit(self.path).path)
        if "/tree/" in path:
            files = self.server.files.items()
            self.answer([{"type": "file", "path": name, "size": len(one), "oid": oid(one)} for name, one in files])
        elif "/resolve/" in path:
            name = path.split("/resolve/")[1].partition("/")[2]
            content = self.server.files[name]
            if self.command == "GET":
                self.server.fetched.append(name)
            self.answer(content, ETag=f'"{oid(content)}"', **{"X-Repo-Commit": self.server.commit})
        else:
            self.answer({"id": "owner/name", "sha": self.server.commit, "siblings": [], "tags": []})

    do_HEAD = do_GET

    def answer(self, content: object, **headers: str) -> None:
        """JSON, or bytes as they are."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(200)
        for name, value in {"Content-Length": str(len(body)), "Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def chunks(self) -> bytes:
        """A body that comes in pieces."""
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found


@contextmanager
def running() -> Iterator[Hub]:
    """A hub that answers inside the block."""
    hub = Hub()
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
