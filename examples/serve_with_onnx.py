"""Answer over HTTP what pictures show, with an exported model: no torch, no grace.

    python examples/serve_with_onnx.py model.onnx --port 8000
    curl --data-binary @photo.jpg http://localhost:8000/
    curl http://localhost:8000/health

It needs numpy, Pillow and onnxruntime. The answer is JSON; ``unknown`` is missing if the learner
had too few held-out images for so few false alarms.
"""

import argparse
import io
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from PIL import Image

from predict_with_onnx import Model

MOST_BYTES = 2**24
Image.MAX_IMAGE_PIXELS = 2**23
"""PIL refuses pictures of more than twice as many pixels, before it decodes them."""


class Handler(BaseHTTPRequestHandler):
    """Answers one picture per request."""

    model: Model
    false_alarms: int

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
            picture = io.BytesIO(self.rfile.read(size))
            return self.send(200, self.model.answer(picture, self.false_alarms))
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
    options = parser.parse_args()
    Handler.model, Handler.false_alarms = Model(options.model), options.false_alarms
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    print(f"listening on http://{options.host}:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
