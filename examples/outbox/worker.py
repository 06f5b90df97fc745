#!/usr/bin/env python3
"""Books the tax of orders at the tax service.  usage: worker.py URL; PGHOST ... give the database."""
import json
import sys
import urllib.error
import urllib.request

import psycopg

from jobq import Consumer, Reject, Release

URL = sys.argv[1]


def book(job):
    """Each attempt sends the same key, so the service books an order once, however often we ask."""
    order = job.payload
    request = urllib.request.Request(URL, json.dumps(order).encode(), {"Idempotency-Key": order["id"]})
    try:
        with urllib.request.urlopen(request, timeout=1) as answer:
            booking = json.load(answer)
    except urllib.error.HTTPError as error:
        reason = json.load(error)["error"]
        if error.code == 429:  # no failure: come again when the service says so
            raise Release(float(error.headers["Retry-After"]))
        if error.code == 422:  # no attempt can succeed
            raise Reject(reason)
        raise RuntimeError(f"{error.code}: {reason}")  # counts as an attempt, like a timeout
    with psycopg.connect("") as db:
        db.execute("UPDATE shop.orders SET tax = %s, receipt = %s WHERE id = %s", (booking["tax"], booking["receipt"], order["id"]))
    return booking


Consumer("", ["tax"], {"tax.book": book}, parallel=4, stop_timeout=5).run()
