"""Real Redis servers for tests and benchmarks: processes on free ports, gone at the end."""

import os
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import redis

N_SLOTS = 16_384
# A quick failover, and reads that continue while it happens.
CLUSTER_OPTIONS = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "2000",
    "cluster-require-full-coverage": "no",
    "cluster-allow-reads-when-down": "yes",
    "repl-ping-replica-period": "1",  # a replica is listed once it has received anything
}


_given = set()  # ports


class Server:
    """One redis-server process. Nothing is saved: after a kill it comes back empty."""

    command, host = ("redis-server",), "127.0.0.1"

    def __init__(self, folder, options):
        self.folder, self.options = Path(folder), options
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port, self.process = free_port(), None
        self.address = f"{self.host}:{self.port}"
        self.start()

    def start(self):
        options = {
            "bind": self.host,
            "dir": str(self.folder),
            "save": "",
            "repl-diskless-sync-delay": "0",
            **({} if "tls-port" in self.options else {"port": str(self.port)}),
            **{name: str(value).replace("PORT", str(self.port))
               for name, value in self.options.items()},
        }  # fmt: skip
        # As a file, so that no password is in the list of processes.
        config = self.folder / "redis.conf"
        config.write_text("".join(f'{name} "{value}"\n' for name, value in options.items()))
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*self.command, config], stdout=log, stderr=log)

    def client(self, **options):
        return redis.Redis(self.host, self.port, socket_timeout=5, protocol=2, **options)

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def log(self):
        return (self.folder / "log").read_text(errors="replace")


class Servers:
    """A cluster of masters, each with the same number of replicas, or one plain server.

    ``client`` holds keywords for the administrator's connections: user, password, certificates.
    """

    def __init__(self, folder, masters=3, replicas=1, *, options=(), scheme="redis", client=()):
        self._client = dict(client)
        self._folder, self._options = Path(folder), {**CLUSTER_OPTIONS, **dict(options)}
        n = masters * (1 + replicas)
        self.servers = [Server(self._folder / str(i), self._options) for i in range(n)]
        self.masters = self.servers[:masters]
        self.scheme = scheme
        try:
            for server in self.servers:
                wait_for(lambda server=server: self.ask(server, "PING"), server.log)
            self._join(replicas)
        except BaseException:
            self.close()
            raise

    @property
    def url(self):
        return f"{self.scheme}://" + ",".join(server.address for server in self.servers[:3])

    def at(self, address):
        return next(server for server in self.servers if server.address == address)

    def replica_of(self, master):
        return self.servers[len(self.masters) + self.masters.index(master)]

    def ask(self, server, *command):
        with server.client(**self._client) as client:
            return client.execute_command(*command)

    def _join(self, replicas):
        bounds = [N_SLOTS * i // len(self.masters) for i in range(len(self.masters) + 1)]
        for epoch, server in enumerate(self.servers, 1):
            self.ask(server, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
            for other in self.servers[:epoch]:  # everybody: quicker than gossip
                self.ask(server, "CLUSTER", "MEET", "127.0.0.1", other.port)
        for master, first, last in zip(self.masters, bounds, bounds[1:], strict=False):
            self.ask(master, "CLUSTER", "ADDSLOTSRANGE", first, last - 1)
        self.wait_until_known(self.servers)
        for i, server in enumerate(self.servers[len(self.masters) :]):
            master = self.masters[i % len(self.masters)]
            self.ask(server, "CLUSTER", "REPLICATE", self.name_of(master))
        wait_for(lambda: all(map(self.is_ready, self.servers)), self.servers[0].log)
        wait_for(lambda: all(self._replicas(server) == replicas for server in self.masters))
        wait_for(self._agreed)

    def _agreed(self):
        """Whether every server lists every replica."""
        return all(
            sum(len(row) - 2 for row in server_rows) == len(self.servers)
            for server_rows in (raw(self.ask(s, "CLUSTER", "SLOTS")) for s in self.servers)
        )

    def wait_until_known(self, servers):
        for server in servers:
            wait_for(lambda s=server: len(raw(self.ask(s, "CLUSTER", "NODES")).split(b"connected"))
                     > len(self.servers))  # fmt: skip

    def is_ready(self, server):
        return b"cluster_state:ok" in raw(self.ask(server, "CLUSTER", "INFO"))

    def _replicas(self, server):
        with server.client(**self._client) as client:
            info = client.info("replication")
        return sum(info[f"slave{i}"]["state"] == "online" for i in range(info["connected_slaves"]))

    def name_of(self, server):
        return raw(self.ask(server, "CLUSTER", "MYID")).decode()

    def add_master(self):
        """A further master, without slots."""
        server = Server(self._folder / str(len(self.servers)), self._options)
        self.servers.append(server)
        wait_for(lambda: self.ask(server, "PING"), server.log)
        self.ask(server, "CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)
        self.wait_until_known(self.servers)
        wait_for(lambda: self.is_ready(server))
        return server

    def move_slots(self, source, target, slots):
        """Move slots with their keys, as redis-cli does it; readers see ASK, then MOVED."""
        names = self.name_of(source), self.name_of(target)
        for slot in slots:
            self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
            self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
            while keys := self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 10):
                self.ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
            for server in (target, source):
                self.ask(server, "CLUSTER", "SETSLOT", slot, "NODE", names[1])

    def close(self):
        for server in self.servers:
            if server.process is not None and server.process.poll() is None:
                server.signal(signal.SIGCONT)
                server.kill()


class PlainServer(Server):
    """One Redis server that is no cluster."""

    def __init__(self, folder, options=()):
        super().__init__(folder, dict(options))
        wait_for(lambda: self.client().ping(), self.log)
        self.url = f"redis://{self.address}"

    def close(self):
        if self.process.poll() is None:
            self.kill()


@contextmanager
def closing(servers):
    try:
        yield servers
    finally:
        servers.close()


def raw(reply):
    """The reply as bytes where redis-py made text or a dict of it."""
    if isinstance(reply, dict):
        return b"\n".join(f"{k}:{v}".encode() for k, v in reply.items())
    return reply.encode() if isinstance(reply, str) else reply


def free_port():
    """A port that is free, and with it the cluster's own, 10,000 above.

    Both are below those that Linux gives to clients, so that nobody takes them by chance. None is
    given twice: a server that was just started need not have its port yet. Tests that run beside
    each other have ports of their own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 3
    for _ in range(10_000):
        port = 20_000 + 900 * worker + int.from_bytes(os.urandom(2)) % 900
        if port in _given:
            continue
        _given.add(port)
        with socket.socket() as low, socket.socket() as high:
            try:
                low.bind(("127.0.0.1", port))
                high.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


def wait_for(condition, log=lambda: "", seconds=120.0):
    """Wait until a condition holds; servers that do not answer yet are no error."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except (redis.RedisError, OSError) as error:
            problem = error
        else:
            problem = "not yet"
        if time.monotonic() > deadline:
            raise TimeoutError(f"{problem}\n{log()}")
        time.sleep(0.02)
