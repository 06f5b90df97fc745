#!/usr/bin/env python3
"""Runs the steps of test/t/produce_libraries.pl with the library for Python, and prints a line for each."""
import asyncio
import datetime
import json
import os
import sys
import uuid

import psycopg
from psycopg.rows import dict_row

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../libraries/python"))
import jobq


# In SQL, without the library, no parameter needs a cast.
UNTYPED = """SELECT jobq.enqueue(%s, %s, queue => %s, priority => %s, delay => %s, max_attempts => %s, tags => %s, uniqueness => %s,
unique_key => %s, headers => %s, options => %s)"""


def shown(status):
    return f"{status.state} {status.attempt} {jobq.written(status.result)}"


def call(connection, step, *values):
    if step == "enqueue":
        return jobq.enqueue(connection, values[0], json.loads(values[1]), **json.loads(values[2])), str
    if step == "many":
        return jobq.enqueue_many(connection, values[0], json.loads(values[1]), **json.loads(values[2])), \
            lambda ids: " ".join(map(str, ids))
    if step == "native":
        return jobq.enqueue(
            connection, values[0], queue="mail", run_at=datetime.datetime(2040, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc),
            timeout=datetime.timedelta(minutes=2), tags=("a", "b"), unique_key="native", uniqueness={"for": 90},
            options={"uuid": uuid.UUID(values[1])}), str
    if step == "untyped":
        return connection.execute(UNTYPED, [value or None for value in values]), lambda cursor: "done"
    if step == "status":
        return jobq.status(connection, values[0]), shown
    return jobq.wait(connection, int(values[0]), float(values[1])), shown


def told(error):
    return "error " + (getattr(error, "sqlstate", None) or type(error).__name__)


async def main_async():
    async with await psycopg.AsyncConnection.connect("") as connection:
        for step in sys.argv[1:]:
            try:
                if step in ("commit", "rollback"):
                    await getattr(connection, step)()
                    continue
                answer, show = call(connection, *step.split("\t"))
                print(show(await answer))
            except psycopg.Error as error:
                print(told(error))
                await connection.rollback()


def main():
    with psycopg.connect("", row_factory=dict_row) as connection:
        for step in sys.argv[1:]:
            try:
                if step in ("commit", "rollback"):
                    getattr(connection, step)()
                    continue
                answer, show = call(connection, *step.split("\t"))
                print(show(answer))
            except psycopg.Error as error:
                print(told(error))
                connection.rollback()


if os.environ.get("ASYNC"):
    asyncio.run(main_async())
else:
    main()
