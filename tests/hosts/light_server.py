"""A web server that looks like a production engine from outside and starts in a moment: ready path and model list, nothing else."""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def main() -> None:
    """Serve for ever."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    args, _ = parser.parse_known_args()
    models = {"object": "list", "data": [{"id": args.served_model_name, "object": "model"}]}

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found = {"/v1/models": models, "/health": {}, "/health_generate": {}}.get(self.path)
            body = b"" if found is None else json.dumps(found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            """Say nothing."""

    ThreadingHTTPServer((args.host, args.port), Answers).serve_forever()


main()
