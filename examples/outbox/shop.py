#!/usr/bin/env python3
"""The shop: takes 20 orders, and shows how their taxes are booked.  usage: shop.py URL"""
import json
import sys
import time
import urllib.request

import psycopg

from jobq import enqueue, wait

BACKOFF = "exponential 500ms cap 30s jitter 20%"


def place_order(db, country, amount):
    """The order and its message to the tax service exist together, or not at all."""
    with db.transaction():
        id, number = db.execute(
            "INSERT INTO shop.orders (country, amount) VALUES (%s, %s) RETURNING id::text, number", (country, amount)).fetchone()
        return enqueue(db, "tax.book", {"id": id, "number": number, "country": country, "amount": amount},
                       queue="tax", unique_key=id, max_attempts=8, backoff=BACKOFF)


def show_progress(db, jobs):
    while True:
        states = dict(db.execute("SELECT state, count(*) FROM jobq.jobs WHERE id = ANY (%s) GROUP BY state ORDER BY state",
                                 (jobs,)).fetchall())
        print("  " + ", ".join(f"{number} {state}" for state, number in states.items()), flush=True)
        if not states.keys() - {"completed", "dead"}:
            return
        time.sleep(0.5)


def correct(db, job, order, country):
    """A clerk corrects the country of an order that the service has rejected."""
    order = {**order, "country": country}
    with db.transaction():
        db.execute("UPDATE shop.orders SET country = %s WHERE id = %s", (country, order["id"]))
        db.execute("SELECT jobq.edit(%s, %s), jobq.retry(%s)", (job, json.dumps(order), job))


with psycopg.connect("", autocommit=True) as db:
    began = time.monotonic()
    jobs = [place_order(db, ["DE", "ES", "FR"][n % 3], 10 * n) for n in range(1, 20)]
    jobs.append(place_order(db, "Spain", 99))
    print(f"{len(jobs)} orders in {1000 * (time.monotonic() - began):.0f} ms")
    show_progress(db, jobs)

    print("dead letters")
    for job, order, error in db.execute("SELECT id, payload, error FROM jobq.dead_letters WHERE id = ANY (%s)", (jobs,)).fetchall():
        print(f"  {error}")
        correct(db, job, order, "ES")
        print(f"  corrected, and {wait(db, job).state}")

    print("orders")
    for row in db.execute("""SELECT o.number, j.attempt, o.tax, o.receipt, coalesce(j.errors -> 0 ->> 'message', '')
            FROM jobq.jobs j JOIN shop.orders o ON o.id = (j.payload ->> 'id')::uuid
            WHERE j.id = ANY (%s) ORDER BY o.number""", (jobs,)):
        print("  {:2}  attempts {}  tax {:6}  receipt {:4}  {}".format(*row))
with urllib.request.urlopen(sys.argv[1]) as answer:
    print("the tax service has had {requests} requests, and has made {bookings} bookings".format(**json.load(answer)))
