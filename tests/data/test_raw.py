import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cru.data import raw

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT, with ranges; closes early ``breaks`` times; remembers which ranges were asked for."""

    breaks, slow = 0, 0.0
    content = CONTENT


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        start = int(asked.split("=")[1].rstrip("-")) if asked else 0
        if self.path != "/file.bin":
            return self.send_error(404)
        if asked and start >= len(self.server.content):
            return self.send_error(416)
        body = self.server.content[start:]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        time.sleep(self.server.slow)
        if self.server.breaks:
            self.server.breaks -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def fetch(server, tmp_path, name="file.bin", sha256=SHA256):
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    return raw.download(url, {name: sha256}, "x", cache=tmp_path, progress=False)


def files(tmp_path):
    return sorted(p.name for p in (tmp_path / "raw" / "x").iterdir())


def test_download_checks_and_keeps(server, tmp_path):
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT and files(tmp_path) == ["file.bin"]
    fetch(server, tmp_path)
    assert server.asked == [None], "a file that is there is not downloaded again"


def test_a_broken_download_goes_on_where_it_stopped(server, tmp_path):
    server.breaks = 1
    with pytest.raises(OSError, match=r"cannot download http.*/file.bin \(.*\). Check the connection"):
        fetch(server, tmp_path)
    assert files(tmp_path) == ["file.bin.part"], "nothing half-written under the final name"
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT and files(tmp_path) == ["file.bin"]
    assert server.asked[0] is None and server.asked[1].startswith("bytes=")


def test_a_complete_part_needs_only_its_name(server, tmp_path):
    part = tmp_path / "raw" / "x" / "file.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    server.content = CONTENT[::-1]
    with pytest.raises(ValueError, match=r"must have the sha256"):
        fetch(server, tmp_path)
    assert files(tmp_path) == []


def test_a_source_without_checksum_is_never_resumed(server, tmp_path):
    part = tmp_path / "raw" / "x" / "file.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"yesterday's")
    (path,) = fetch(server, tmp_path, sha256=None)
    assert path.read_bytes() == CONTENT


def test_no_internet_and_a_missing_file_are_one_sentence(server, tmp_path):
    with pytest.raises(OSError, match=r"the server responds with 404"):
        fetch(server, tmp_path, name="other.bin")
    with pytest.raises(OSError, match=r"cannot download .*ConnectionError.*CRU_DATA_DIR"):
        raw.download("http://127.0.0.1:9/", {"file.bin": SHA256}, "y", cache=tmp_path, progress=False)
    assert not list((tmp_path / "raw" / "y").iterdir())


def test_the_data_folder_must_exist(tmp_path, monkeypatch):
    assert raw.data_dir(None) is None
    monkeypatch.setenv("CRU_DATA_DIR", str(tmp_path))
    assert raw.data_dir(None) == tmp_path
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        raw.data_dir(tmp_path / "nowhere")


def test_two_at_once_download_one_file(server, tmp_path):
    server.slow = 0.3
    with ThreadPoolExecutor(2) as pool:
        found = [future.result() for future in [pool.submit(fetch, server, tmp_path, sha256=None) for _ in range(2)]]
    assert [path.read_bytes() == CONTENT for (path,) in found] == [True, True]
    assert server.asked == [None]
