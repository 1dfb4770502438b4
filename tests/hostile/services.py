"""A service in a process of its own, the memory it takes, and an honest client beside attacks."""

import http.client
import json
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from tests.hostile import attackers
from tests.serve.factories import DIM, Process

ATTACKERS = str(Path(attackers.__file__))
SEARCH = json.dumps({"vectors": [[0.0] * DIM], "bucket_ids": [[1]], "n_neighbors": 5}).encode()
TEXT_TYPE = {"Content-Type": "application/json"}
assert DIM == attackers.DIM


class Attacked:
    """A service that is attacked."""

    def __init__(self, table, log, start=Process, **settings):
        self.service = start(table, log=log, **settings)
        self.pid = self.service.process.pid
        self.port = int(self.service.url.rpartition(":")[2])
        self.memory_limit = settings.get("max_memory", 256 << 20) / 2**20
        token = settings.get("token")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        with self.honest_client(headers) as honest:  # whatever first requests load is there now
            time.sleep(1.0)
        assert honest.failures == []
        self.idle = self.megabytes("VmRSS")

    def megabytes(self, name):
        """VmRSS: resident now; VmHWM: the most since the last reset."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
        raise KeyError(name)

    def reset_peak(self):
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def get(self, path, **headers):
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        client.request("GET", path, headers=headers)
        answer = client.getresponse()
        try:
            return answer.status, answer.read().decode()
        finally:
            client.close()

    def attack(self, name, **options):
        """Start an attack in another process."""
        command = [sys.executable, ATTACKERS, name, str(self.port), json.dumps(options)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    @contextmanager
    def honest_client(self, headers=None):
        honest = Honest(self.port, headers or {})
        honest.thread.start()
        try:
            yield honest
        finally:
            honest.stop.set()
            honest.thread.join()

    def under(self, name, processes=1, *, headers=None, **options):
        """Run an attack, so many of it at once, beside an honest client; what came of both."""
        self.reset_peak()
        with self.honest_client(headers) as honest:
            attacks = [self.attack(name, **options) for _ in range(processes)]
            results = [json.loads(attack.communicate(timeout=600)[0]) for attack in attacks]
        return Outcome(self, name, options, honest, results)

    def stop(self):
        return self.service.stop()


class Honest:
    """A client that asks for health and searches, on new connections and on one that stays."""

    def __init__(self, port, headers):
        self.port, self.headers = port, headers
        self.seconds, self.failures = [], []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        kept, number = None, 0
        while not self.stop.is_set() or number < 3:
            number += 1
            if kept is None or number % 4 == 0:
                if kept is not None:
                    kept.close()
                kept = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            health = number % 2 == 0
            start = time.perf_counter()
            try:
                if health:
                    kept.request("GET", "/health")
                else:
                    kept.request("POST", "/v1/search", SEARCH, {**TEXT_TYPE, **self.headers})
                answer = kept.getresponse()
                answer.read()
                if answer.status != 200:
                    self.failures.append(answer.status)
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                kept.close()
                kept = None
            self.seconds.append(time.perf_counter() - start)
            time.sleep(0.01)
        if kept is not None:
            kept.close()


class Outcome:
    """What an attack did."""

    def __init__(self, attacked, name, options, honest, results):
        self.attacked, self.results = attacked, results
        self.seconds, self.failures = sorted(honest.seconds), honest.failures
        self.peak, self.idle = attacked.megabytes("VmHWM"), attacked.idle
        self.name = f"{name} {options}"[:120]

    @property
    def median(self):
        return self.seconds[len(self.seconds) // 2]

    @property
    def p99(self):
        return self.seconds[int(len(self.seconds) * 0.99)]

    def __str__(self):
        return (
            f"{self.name}: {self.peak:.0f} MB at most, {self.idle:.0f} MB idle; honest client"
            f" {len(self.seconds)} requests, median {self.median * 1e3:.1f} ms,"
            f" p99 {self.p99 * 1e3:.0f} ms, longest {self.seconds[-1] * 1e3:.0f} ms,"
            f" {len(self.failures)} failed; attackers: {str(self.results)[:300]}"
        )

    def check(self, *, bodies=False, p99=0.1):
        """Memory within its limit, and every honest request answered in time."""
        print(self)
        limit = 1.5 * self.idle + self.attacked.memory_limit * bodies
        assert self.peak < limit, str(self)
        assert self.failures == [], str(self)
        assert self.p99 < p99, str(self)
        assert "Traceback" not in self.attacked.service.log.read_text()
