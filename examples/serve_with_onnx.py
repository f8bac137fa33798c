"""Answer over HTTP what pictures show, with an exported model: no torch, no grace.

    python examples/serve_with_onnx.py model.onnx --port 8000
    curl --data-binary @photo.jpg http://localhost:8000/
    curl http://localhost:8000/health

It needs numpy, Pillow and onnxruntime. The answer is JSON; ``unknown`` is missing if the learner
had too few held-out images for so few false alarms.

Anybody may ask. A connection has so many seconds in all, however slowly it sends; only so many are
open at once, and one more is told to come again; pictures are decoded one after another, and the
process gets only so much memory.
"""

import argparse
import io
import json
import socket
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Lock, Timer
from typing import cast

from PIL import Image

from predict_with_onnx import Model

MOST_BYTES = 2**24
Image.MAX_IMAGE_PIXELS = 2**23
"""PIL refuses pictures of more than twice as many pixels, before it decodes them."""
MOST_SCANS = 100
"""Each scan of a JPEG picture is a pass over all its pixels; a few bytes make one."""
MOST_MEMORY = 2**32
"""Bytes of the process, where the system can limit it."""
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


Request = socket.socket | tuple[bytes, socket.socket]


class Server(ThreadingHTTPServer):
    """Serves a few connections at once, each for a few seconds at most."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], connections: int, seconds: float) -> None:
        super().__init__(address, Handler)
        self.places, self.seconds = BoundedSemaphore(connections), seconds

    def process_request(self, request: Request, client_address: object) -> None:
        """Serve a connection in a thread, or refuse it if there are enough."""
        if self.places.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            refused = cast("socket.socket", request)
            refused.setblocking(False)
            refused.sendall(BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Request, client_address: object) -> None:
        """Serve a connection until its seconds are over."""
        timer = Timer(self.seconds, end, (request,))
        timer.daemon = True
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self.places.release()

    def handle_error(self, request: Request, client_address: object) -> None:
        """Say in one line that a connection broke."""
        print(f"{client_address}: {sys.exception()!r}"[:200], file=sys.stderr)


def end(request: Request) -> None:
    """End a connection; who reads from it reads no more."""
    with suppress(OSError):
        cast("socket.socket", request).shutdown(socket.SHUT_RDWR)


def limit_memory() -> None:
    """Let the process take no more than ``MOST_MEMORY``, where the system can limit it."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, hard))


class Handler(BaseHTTPRequestHandler):
    """Answers one picture per request."""

    model: Model
    false_alarms: int
    one_at_a_time = Lock()

    def do_GET(self) -> None:
        """Answer ``/health``, by which a container is asked if it is ready."""
        if self.path == "/health":
            return self.send(200, {"status": "ok"})
        return self.send(404, {"error": "POST a picture, or GET /health"})

    def do_POST(self) -> None:
        """Answer with the class of the picture in the body."""
        try:
            size = int(self.headers.get("Content-Length", 0))
        except ValueError:
            size = 0
        if not 0 < size <= MOST_BYTES:
            status = 413 if size > MOST_BYTES else 400
            return self.send(status, {"error": f"send 1 to {MOST_BYTES} bytes"})
        try:
            picture = self.rfile.read(size)
            if picture.count(b"\xff\xda") > MOST_SCANS:
                return self.send(400, {"error": "the picture has too many scans"})
            with self.one_at_a_time:
                found = self.model.answer(io.BytesIO(picture), self.false_alarms)
            return self.send(200, found)
        except (ValueError, SystemExit) as error:
            return self.send(400, {"error": str(error)})

    def send(self, status: int, content: dict[str, object]) -> None:
        """Send content as JSON."""
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--false-alarms", type=int, default=5, choices=[1, 2, 5, 10], help="in percent (default: 5)"
    )
    parser.add_argument("--connections", type=int, default=16, help="at once (default: 16)")
    parser.add_argument("--seconds", type=float, default=20, help="of a connection (default: 20)")
    options = parser.parse_args()
    Handler.model, Handler.false_alarms = Model(options.model), options.false_alarms
    limit_memory()
    server = Server((options.host, options.port), options.connections, options.seconds)
    print(f"listening on http://{options.host}:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
