"""Processor time of a job on the servers of two builds, by turns: see statistics.

usage: paired.py FOLDER PROGRAMS PROGRAMS ROUNDS JOBS
"""

import os
import statistics
import subprocess
import sys

TARGET = 1.03
CONF = """
shared_preload_libraries = 'jobq'
jobq.workers = '*=1'
shared_buffers = '512MB'
max_wal_size = '8GB'
checkpoint_timeout = '1h'
autovacuum = off
listen_addresses = ''
"""


class Server:
    def __init__(self, folder, programs, settings=CONF):
        self.programs, self.folder, self.data = programs, folder, folder + "/data"
        os.makedirs(folder)
        self.run("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "-N", "--no-instructions")
        with open(self.data + "/postgresql.conf", "a") as conf:
            conf.write(settings + f"unix_socket_directories = '{folder}'\n")
        self.run("pg_ctl", "-s", "-w", "-D", self.data, "-l", folder + "/log", "start")
        self.session = subprocess.Popen([programs + "/psql", "-XAtq", "-h", folder, "-U", "postgres"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask("CREATE EXTENSION jobq")
        self.ask("CREATE FUNCTION nothing() RETURNS void LANGUAGE internal AS 'pg_stat_clear_snapshot'")
        self.ask("SELECT jobq.register('nothing', 'nothing()')")
        self.backend = int(self.ask("SELECT pg_backend_pid()"))

    def run(self, program, *arguments):
        subprocess.run([self.programs + "/" + program, *arguments], check=True, stdout=subprocess.DEVNULL)

    def ask(self, query):
        """The last line of the answer."""
        self.session.stdin.write(query + ";\n\\echo over\n")
        self.session.stdin.flush()
        last = None
        for line in self.session.stdout:
            if line == "over\n":
                return last
            last = line.strip() or last
        sys.exit("psql has ended: see " + self.folder + "/log")

    def time(self, pid):
        with open(f"/proc/{pid}/schedstat") as stat:
            return int(stat.read().split()[0])

    def round(self, jobs):
        """Nanoseconds of a job: the session's, the worker's."""
        self.ask("SELECT jobq.enqueue('nothing')")
        self.ask("SELECT jobq.wait_queue('default', '1 min')")
        worker = int(self.ask("SELECT pid FROM jobq.workers WHERE pid IS NOT NULL"))
        self.ask("SELECT jobq.pause('default')")
        began = self.time(self.backend), self.time(worker)
        self.ask(f"SELECT count(jobq.enqueue('nothing')) FROM generate_series(1, {jobs})")
        enqueued = self.time(self.backend)
        self.ask("CHECKPOINT")
        self.ask("SELECT jobq.resume('default')")
        self.ask("SELECT jobq.wait_queue('default', '5 min')")
        return (enqueued - began[0]) / jobs, (self.time(worker) - began[1]) / jobs

    def stop(self):
        self.session.stdin.close()
        self.session.wait()
        self.run("pg_ctl", "-s", "-m", "fast", "-D", self.data, "stop")


def main():
    folder, rounds, jobs = sys.argv[1], int(sys.argv[4]), int(sys.argv[5])
    servers = [Server(f"{folder}/{name}/cluster", programs)
               for name, programs in zip(("with", "without"), sys.argv[2:4])]
    try:
        figures = []
        for number in range(rounds + 1):
            order = (0, 1) if number % 2 else (1, 0)
            figure = {which: servers[which].round(jobs) for which in order}
            if number > 0:
                figures.append(figure)
    finally:
        for server in servers:
            server.stop()
    ratio = None
    for name, time in (("enqueue", lambda f: f[0]), ("run", lambda f: f[1]), ("both", sum)):
        ratio = statistics.median(time(f[0]) / time(f[1]) for f in figures)
        with_them, without = (statistics.median(time(f[which]) for f in figures) / 1000 for which in (0, 1))
        print(f"{name:8} {with_them:6.2f} µs with, {without:6.2f} µs without: ratio {ratio:.3f}")
    print(f"target: at most {TARGET}: {'met' if ratio <= TARGET else 'missed'}")
    sys.exit(ratio > TARGET)


if __name__ == "__main__":
    main()
