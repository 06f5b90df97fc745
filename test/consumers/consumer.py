#!/usr/bin/env python3
"""The consumer of test/perl/JobqLibrary.pm, with the library for Python.

Its handler does what the payload says; it notes in a file with which token it has begun which job.
"""
import asyncio
import json
import logging
import os
import sys
import time

import psycopg

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../libraries/python"))
from jobq import Consumer, Reject, Release, Retry

folder = os.environ["FOLDER"]
given_back = set()


class Odd(Exception):
    def __str__(self):
        return self.args[1]


def note(what, job):
    with open(f"{folder}/{what}", "a") as file:
        file.write(f"{job.id} {job.token}\n")


def begin(job):
    """Returns whether the handler is to wait for the file "go"."""
    note("began", job)
    do = job.payload.get("do")
    if do == "fail":
        raise ValueError("no image\0")
    if do == "odd":
        if job.attempt == 2:
            raise Odd
        next(iter(()))
    if do == "reject":
        raise Reject("this is no image")
    if do == "retry" and job.attempt == 1:
        raise Retry(0.1, "once more")
    if do == "later" and job.id not in given_back:
        given_back.add(job.id)
        raise Release(1e-5)
    if do == "kill":
        os._exit(9)
    if do == "work":
        time.sleep(0.002)
    if do == "tell":
        job.log("first line")
        job.log("second \u2028 line\0", "warning")
        job.progress(40, "soon")
        job.log(json.dumps(job.context))
    return do in ("hold", "tell")


def done(job):
    do = job.payload.get("do")
    if do == "echo":
        return job.payload["value"]
    return "\0" if do == "bad result" else {"token": job.token, "more": "x" * (2000 if do == "long result" else 1)}


def settle(job, cursor):
    cursor.execute("INSERT INTO done VALUES (%s)", (job.id,))
    if job.attempt == 1:
        job.ack(cursor.connection)
        raise ValueError("undone")
    job.log("before")
    job.ack(cursor.connection, {"own": True})
    note("settles", job)
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)


def handle(job):
    if job.payload.get("do") == "settle":
        with psycopg.connect("") as connection:
            settle(job, connection.cursor())
        job.log("after")
        return "ignored"
    if begin(job):
        while not os.path.exists(f"{folder}/go"):
            time.sleep(0.02)
            if job.lost:
                note("lost", job)
                break
    while job.payload.get("do") == "hang" and not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)
    return done(job)


async def handle_async(job):
    if job.payload.get("do") == "settle":
        async with await psycopg.AsyncConnection.connect("") as connection:
            await connection.execute("INSERT INTO done VALUES (%s)", (job.id,))
            if job.attempt == 1:
                await job.ack(connection)
                raise ValueError("undone")
            job.log("before")
            await job.ack(connection, {"own": True})
            note("settles", job)
            while not os.path.exists(f"{folder}/go"):
                await asyncio.sleep(0.02)
        return "ignored"
    if job.payload.get("do") == "odd" and job.attempt == 1:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task
    if begin(job):
        try:
            while not os.path.exists(f"{folder}/go"):
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            note("lost", job)
            raise
    while job.payload.get("do") == "hang" and not os.path.exists(f"{folder}/go"):
        await asyncio.sleep(0.02)
    if job.payload.get("do") == "clean up":
        try:
            await asyncio.sleep(3600)
        finally:
            note("told", job)
            while not os.path.exists(f"{folder}/go"):
                await asyncio.sleep(0.02)
    return done(job)


if os.environ.get("STUBBORN"):
    # as later versions do: a statement that is cancelled is waited for, if its connection is open
    wait = psycopg.AsyncConnection.wait

    async def stubborn(self, generator, *more):
        task = asyncio.ensure_future(wait(self, generator, *more))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                await asyncio.wait({task})
            task.cancel()
            raise

    psycopg.AsyncConnection.wait = stubborn

logging.basicConfig(format="%(message)s", level=logging.WARNING)
handler = handle_async if os.environ.get("ASYNC") else handle
if os.environ.get("KINDS"):
    handler = {kind: handler for kind in os.environ["KINDS"].split(",")}
Consumer(os.environ.get("CONNINFO", ""), os.environ["QUEUES"].split(","), handler, parallel=int(os.environ["PARALLEL"]),
         ahead=None if os.environ.get("DEFAULTS") else 3, lease=float(os.environ.get("LEASE", 60)), heartbeat=1,
         wait=float(os.environ.get("WAIT", 5)), pause=0.5,
         stop_timeout=float(os.environ["STOP"]) if os.environ.get("STOP") else None, listen=os.environ.get("LISTEN"), name=os.environ["NAME"]).run()
