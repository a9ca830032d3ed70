"""A server on loopback that misbehaves on request, for the tests of fetching. Prints its port, serves until its stdin closes.

/good         the content, with ranges        /norange   the content, ranges refused (416)
/truncated    breaks off in the middle, once; with ranges, so that it can be gone on with
/always-truncated   breaks off at every request
/slow         sends some bytes and then nothing          /empty   nothing at all
anything else 404. GET /requests gives the list of what was asked for so far.
"""
import http.server
import sys
import threading
import time

CONTENT = bytes(i * i % 251 for i in range(100000))
requests = []
truncated = set()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        range_header = self.headers.get("Range")
        path = self.path
        if path == "/requests":
            body = "\n".join(requests).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)
            return
        requests.append(path + " " + (range_header or "whole"))
        kind = path.split("/")[1]
        if kind not in ("good", "norange", "truncated", "always-truncated", "slow", "empty"):
            self.send_error(404)
            return
        start = int(range_header.split("=")[1].split("-")[0]) if range_header else 0
        if range_header and (kind == "norange" or start >= len(CONTENT)):
            self.send_error(416)
            return
        body = b"" if kind == "empty" else CONTENT[start:]
        self.send_response(206 if range_header else 200)
        if range_header:
            self.send_header("Content-Range", "bytes %d-%d/%d" % (start, len(CONTENT) - 1, len(CONTENT)))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if kind == "slow":
            self.wfile.write(body[:1000])
            self.wfile.flush()
            time.sleep(20)
        elif kind == "always-truncated" or (kind == "truncated" and path not in truncated):
            truncated.add(path)
            self.wfile.write(body[: len(body) // 2])
        else:
            self.wfile.write(body)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
