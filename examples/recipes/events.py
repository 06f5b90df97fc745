"""Server-sent events of a job, as a WSGI application: /events?job=7&until=1790000000&signature=..."""
import hmac, json, os, time
from urllib.parse import parse_qsl
import psycopg
from jobq import wait


def application(environ, start_response):
    query = {"job": "", "until": "", "signature": "", **dict(parse_qsl(environ["QUERY_STRING"]))}
    signature = hmac.new(os.environb[b"SECRET"], f"{query['job']} {query['until']}".encode(), "sha256").hexdigest()
    if not hmac.compare_digest(signature, query["signature"]) or float(query["until"]) < time.time():
        start_response("403 Forbidden", [])
        return []
    start_response("200 OK", [("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"), ("X-Accel-Buffering", "no")])
    return events(int(query["job"]))


def events(job, seconds=0, last=None):
    with psycopg.connect("", autocommit=True) as db:
        while True:
            status = wait(db, job, seconds)
            event = json.dumps({"state": status.state, "progress": status.progress or 0, "message": status.message})
            yield (": still there\n\n" if event == last else f"data: {event}\n\n").encode()
            if status.finished_at:
                return
            seconds, last = 1, event
