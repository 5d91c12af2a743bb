"""A server with the protocol of Hugging Face's hub, for the model someone/steps:

    python tests/hub_server.py FOLDER [SECONDS]

FOLDER has a folder of files for each revision. It prints its
address, and waits SECONDS after each tenth of a file with weights."""

import hashlib
import json
import re
import sys
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT, SECONDS = Path(sys.argv[1]), float((*sys.argv, 0)[2])
PATH = re.compile(r"(?:/api/models)?/someone/steps/(refs|revision|tree|resolve)/?([^/]*)/?(.*)")


@cache
def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def commits() -> dict[str, Path]:
    """The folder of each commit."""
    return {hashlib.sha1(each.name.encode()).hexdigest(): each for each in sorted(ROOT.iterdir())}


def listed(file: Path) -> dict[str, Any]:
    """A file, as both lists of files describe it. Those with weights are large."""
    about = {"type": "file", "path": file.name, "rfilename": file.name}
    about |= {"size": file.stat().st_size, "oid": sha256(file)[:40], "blobId": sha256(file)[:40]}
    if file.suffix == ".safetensors":
        about["lfs"] = {"oid": sha256(file), "sha256": sha256(file), "pointerSize": 134}
        about["lfs"]["size"] = about["size"]
    return about


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        match = PATH.fullmatch(unquote(urlsplit(self.path).path))
        if match is None:
            return self.send(404, {"X-Error-Code": "RepoNotFound"})
        kind, revision, name = match.groups()
        if kind == "refs":
            refs = [
                {"name": folder.name, "ref": f"refs/heads/{folder.name}", "targetCommit": commit}
                for commit, folder in commits().items()
            ]
            return self.send_json({"branches": refs, "converts": [], "tags": []})
        found = [(x, each) for x, each in commits().items() if revision in (x, each.name)]
        if not found:
            return self.send(404, {"X-Error-Code": "RevisionNotFound"})
        commit, folder = found[0]
        files = [*map(listed, sorted(folder.iterdir()))]
        if kind == "revision":
            return self.send_json({"id": "someone/steps", "sha": commit, "siblings": files})
        if kind == "tree":
            return self.send_json(files)
        if not (folder / name).is_file():
            return self.send(404, {"X-Error-Code": "EntryNotFound"})
        return self.send_file(folder / name, commit)

    do_HEAD = do_GET  # noqa: N815

    def send_file(self, file: Path, commit: str) -> None:
        data, large = file.read_bytes(), file.suffix == ".safetensors"
        etag = sha256(file) if large else sha256(file)[:40]
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        start = int(self.headers.get("Range", "bytes=0-")[6:].partition("-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.send(206 if start else 200, headers, data[start:], SECONDS * large)

    def send_json(self, content: Any) -> None:
        self.send(200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def send(
        self, code: int, headers: dict[str, str], data: bytes = b"", seconds: float = 0
    ) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        tenth = len(data) // 10 + 1
        for start in range(0, len(data) * (self.command == "GET"), tenth):
            self.wfile.write(data[start : start + tenth])
            time.sleep(seconds)

    def log_message(self, *args: Any) -> None:
        """Prints nothing."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
