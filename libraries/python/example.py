#!/usr/bin/env python3
"""Takes jobs of a queue.  usage: example.py QUEUE; PGHOST ... say where."""
import logging
import sys
import time

from jobq import Consumer, Reject, Release


def make_thumbnail(job):
    if "image" not in job.payload:
        raise Reject("no image")
    if time.localtime().tm_hour == job.payload.get("not_at"):
        raise Release(600)
    for _ in range(job.payload.get("ms", 0) // 100):
        time.sleep(0.1)
        job.check()  # ends it if somebody else may have the job
    return {"file": f"{job.payload['image']}.png"}


logging.basicConfig(level=logging.WARNING)
Consumer("", [sys.argv[1]], make_thumbnail, parallel=4).run()
