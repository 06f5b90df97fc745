#!/usr/bin/env python3
"""The slow tax service: fails, hangs and refuses at times.  usage: tax_service.py PORT

Books a request once for each Idempotency-Key: a repeated request gets the first answer again.  The first request of
an order misbehaves, by the last digit of its number:
1, 6  fails with 503, and books nothing
2, 7  books, and then hangs, so that the client never learns of the booking
3, 8  answers 429, with a time after which to come again
"""
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RATES = {"DE": 19, "ES": 21, "FR": 20}
lock = threading.Lock()
seen = set()
bookings = {}
requests = 0


class Service(BaseHTTPRequestHandler):
    def do_POST(self):
        global requests
        key = self.headers["Idempotency-Key"]
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            requests += 1
            trouble = order["number"] % 5 if key not in seen else 0
            seen.add(key)
            if order["country"] not in RATES:
                return self.answer(422, {"error": f"no country \"{order['country']}\""})
            if trouble == 1:
                return self.answer(503, {"error": "the service is overloaded"})
            if trouble == 3:
                return self.answer(429, {"error": "too many requests"}, {"Retry-After": "1"})
            tax = round(order["amount"] * RATES[order["country"]] / 100, 2)
            booking = bookings.setdefault(key, {"receipt": f"R-{len(bookings) + 1}", "tax": tax})
        time.sleep(5 if trouble == 2 else 0.1)
        self.answer(200, booking)

    def do_GET(self):
        with lock:
            self.answer(200, {"requests": requests, "bookings": len(bookings)})

    def answer(self, status, body, headers={}):
        body = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            pass  # the client has given up

    def log_message(self, *_):
        pass


Service.protocol_version = "HTTP/1.0"
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Service).serve_forever()
