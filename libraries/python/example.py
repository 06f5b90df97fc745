#!/usr/bin/env python3
"""Makes thumbnails.  usage: example.py QUEUE; PGHOST ... give the database."""
import sys
from jobq import Consumer, Reject


def make(job):
    if "image" not in job.payload:
        raise Reject("no image")
    job.check()  # raises an exception if another consumer may have the job
    return {"file": f"{job.payload['image']}.png"}


Consumer("", [sys.argv[1]], {"thumbnail.make": make}, parallel=4, stop_timeout=20).run()
