"""A small server that behaves like an engine towards whoever starts and stops it; told by its arguments how to misbehave."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--label", default="candidate")
parser.add_argument("--start-s", type=float, default=0.0)
parser.add_argument("--fail", default="", help="die while starting with this text")
parser.add_argument("--never-ready", action="store_true")
parser.add_argument("--silent", action="store_true", help="hang without opening the port")
parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM")
parser.add_argument("--grandchild", default="", help="leave a process in a session of its own; its pid goes to this file")
parser.add_argument("--clean-environment", action="store_true", help="… which also does not have our environment")
options = parser.parse_args()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/health_generate":
            self.answer(503 if options.never_ready else 200, b"")
        elif self.path == "/die":
            say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
            os._exit(1)
        else:
            self.answer(200, json.dumps({"label": options.label, "marker": os.environ.get("MARKER", "")}).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


if options.stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if options.grandchild:
    environment = {"PATH": os.environ["PATH"]} if options.clean_environment else None
    child = subprocess.Popen(["sleep", "600"], start_new_session=True, env=environment)
    Path(options.grandchild).write_text(str(child.pid))
say("server_args=ServerArgs(model_path='/m')")
say("[2026-01-01 00:00:00] Load weight begin. avail mem=94.13 GB")
time.sleep(options.start_s)
if options.silent:
    time.sleep(600)
if options.fail:
    say(options.fail)
    sys.exit(1)
server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
say("The server is fired up and ready to roll!")
while True:
    time.sleep(600)
