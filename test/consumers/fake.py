#!/usr/bin/env python3
"""Unit tests of handlers with the queue for unit tests of the library for Python; needs no database."""
import asyncio
import os
import sys
from decimal import Decimal

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../libraries/python"))
from jobq import FakeQueue, Reject, Release, Retry, enqueue, enqueue_many, status, wait


def mail(job):
    if job.payload["to"] == "nobody":
        raise Reject("no such recipient")
    if job.payload["to"] == "away":
        raise Release(600)
    if job.payload["to"] == "busy" and job.attempt == 1:
        raise Retry(5, "busy")
    job.progress(50, "half")
    job.log("sent", "warning")
    enqueue(queue, "note", {"of": job.id})
    return {"amount": job.payload.get("amount"), "trace": job.headers["trace"]}


async def note(job):
    raise ValueError("no note")


def shown(job):
    return f"{job.state} {job.attempt} {job.error} {job.delay}"


queue = FakeQueue({"mail": mail, "note": note})
ids = [enqueue(queue, "mail", {"to": "Ann", "amount": Decimal("12345678901234567890.0123")}, headers={"trace": "x"}, queue="out")]
ids += enqueue_many(queue, "mail", [{"to": to} for to in ("nobody", "away", "busy")], headers={"trace": "y"}, delay="1 min")
ids.append(enqueue(queue, "other"))
assert ids == [1, 2, 3, 4, 5], ids
assert [job.state for job in queue.jobs] == ["ready"] + ["scheduled"] * 3 + ["ready"]
assert queue.jobs[1].options["delay"] == "1 min" and queue.jobs[0].queue == "out" and queue.jobs[4].payload == {}
queue.run()
assert shown(status(queue, 1)) == "completed 1 None None", shown(status(queue, 1))
assert queue.jobs[0].result == {"amount": Decimal("12345678901234567890.0123"), "trace": "x"}
assert (queue.jobs[0].progress, queue.jobs[0].message, queue.jobs[0].log) == (50, "half", [("warning", "sent")])
assert [shown(job) for job in queue.jobs[1:6]] == [
    "dead 1 no such recipient None", "scheduled 0 None 600", "scheduled 1 busy 5", "scheduled 0 None 10.0", "ready 0 None None"]
for _ in range(3):
    queue.run()
assert shown(queue.jobs[3]) == "completed 2 None None", shown(queue.jobs[3])
assert shown(queue.jobs[5]) == "dead 3 ValueError: no note None", shown(queue.jobs[5])
try:
    enqueue(queue, "mail", {"to": object()})
    raise SystemExit("a payload that is no JSON was taken")
except TypeError:
    pass


uuid = "6F1C2A9E-1b3d-4c5e-8f70-1234567890ab"
by_uuid = enqueue(queue, "mail", {"to": "Bo"}, options={"uuid": uuid})
assert status(queue, uuid.lower()) is status(queue, str(by_uuid)) is queue.jobs[by_uuid - 1]
for unknown in (0, 99, -1, "00000000-0000-4000-8000-000000000000", "None"):
    try:
        raise SystemExit(f"status of {unknown}: {status(queue, unknown)}")
    except LookupError as error:
        assert str(error) == f"job {unknown} does not exist", error


def settle(job):
    job.ack(own, {"own": True})
    return "ignored"


own = FakeQueue(settle)
enqueue(own, "settle")
own.run()
assert (own.jobs[0].state, own.jobs[0].attempt, own.jobs[0].result) == ("completed", 1, {"own": True})


async def main():
    queue = FakeQueue(note, asynchronous=True)
    id = await enqueue(queue, "note", max_attempts=1)
    await queue.work()
    assert (await wait(queue, id)).state == "dead"

asyncio.run(main())
print("all hold")
